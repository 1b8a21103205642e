/* One LSTM layer over all its time steps, forward and backward, with its own matrix product.
 *
 * The right-hand side of a product is packed into panels: WIDTH columns with consecutive rows. Part of a panel fits
 * the L1 cache while all rows of the left-hand side are processed, and a tile of ROWS rows of the result stays in
 * registers. Weights are packed once per call and serve all steps. The four gates of a block of WIDTH units are
 * contiguous, and are activated as soon as their products are ready. The backward pass gathers the gradients of the
 * gates of several steps; then one product each gives the gradients of the weights and of the input.
 *
 * Order of the gates: input, forget, cell, output. Arrays are (steps, batch, features) or (rows, columns), with
 * weights in torch's layout; only `gates` is (hidden / WIDTH, steps, batch, 4, WIDTH). `hidden` is a multiple of
 * WIDTH: the caller pads with zeros, and a unit of zeros stays 0 and has no gradients. The state before the first step
 * is 0.
 *
 * Single thread, float32, no state, any alignment; the order of every sum is fixed. */
#include "vectors.h"
#define DEPTH (4096 / WIDTH)  /* rows of a panel that are multiplied together: 16 KB */
#define GATHER (5120 / WIDTH) /* approximate rows of gradients that are gathered */
#define AHEAD 96              /* minimum rows whose input products are computed together */
#define BLOCK (16 * ROWS)     /* gates whose gradients are packed together */
#define COPIED ((ROWS + LANES - 1) / LANES * LANES)

INLINE I most(I a, I b) { return a > b ? a : b; }
INLINE I filled(I n) { return (n + WIDTH - 1) / WIDTH * WIDTH; }

/* Limits |x| to `limit`; NaN stays NaN. */
INLINE vec cut(vec x, float limit) {
#if defined(__AVX512F__) && LANES == 16
    return _mm512_max_ps(all(-limit), _mm512_min_ps(all(limit), x));
#elif defined(__AVX__) && LANES == 8
    return _mm256_max_ps(all(-limit), _mm256_min_ps(all(limit), x));
#else
    ints high = x > all(limit), low = x < all(-limit);
    return (vec)((high & (ints)all(limit)) | (low & (ints)all(-limit)) | (~(high | low) & (ints)x));
#endif
}

/* Computes exp(x) - 1 = scale * part + (scale - 1) for |x| < 88: scale = 2^n and part = exp(r) - 1, where r = x - n ln
 * 2 is at most ln(2) / 2, by a polynomial fitted to 3e-9. This form loses no digits near 0. */
INLINE vec exp_part(vec x, vec *scale) {
    const vec magic = all(12583039.0f); /* 1.5 * 2^23 + 127: adding it rounds, and leaves n + 127 in the lowest bits */
    vec shifted = x * all(1.44269504f) + magic;
    vec r = x - (shifted - magic) * all(0.693147181f);
    vec p = r * all(1.38145988e-3f) + all(8.36871658e-3f);
    p = p * r + all(4.16683890e-2f);
    p = p * r + all(1.66665211e-1f);
    p = p * r + all(4.99999940e-1f);
    *scale = (vec)((ints)shifted << 23);
    return p * (r * r) + r;
}

INLINE vec sigmoid(vec x) {
    vec scale, part = exp_part(cut(-x, 87.0f), &scale);
    return 1.0f / (scale * part + (scale + 1.0f));
}

INLINE vec tangent(vec x) { /* tanh */
    vec scale, part = exp_part(cut(x + x, 40.0f), &scale);
    vec e = scale * part + (scale - 1.0f);
    return e / (e + 2.0f);
}

/* Computes c = start + a b (without start: c += a b) for a few rows of c and WIDTH columns. The elements of a are
 * a[i * row + k * step], and b is a panel. */
INLINE void tile(int rows, I depth, const float *a, I row, I step, const float *b, float *c, I ldc, const float *start) {
    vec sum[ROWS][2] = {{{0}}};
#pragma GCC unroll 4
    for (I k = 0; k < depth; k++, a += step, b += WIDTH) {
        vec b0 = get(b), b1 = get(b + LANES);
#pragma GCC unroll 12
        for (int i = 0; i < rows; i++) {
            vec x = all(a[i * row]);
            sum[i][0] += x * b0;
            sum[i][1] += x * b1;
        }
    }
#pragma GCC unroll 12
    for (int i = 0; i < rows; i++, c += ldc) {
        const float *from = start ? start : c;
        put(c, get(from) + sum[i][0]);
        put(c + LANES, get(from + LANES) + sum[i][1]);
    }
}

#define CASE(n, row, step) case n: tile(n, depth, a, row, step, b, c, ldc, start); break;
#define SIX(n, row, step) \
    CASE(n + 1, row, step) CASE(n + 2, row, step) CASE(n + 3, row, step) \
    CASE(n + 4, row, step) CASE(n + 5, row, step) CASE(n + 6, row, step)
#if ROWS == 12
#define CASES(row, step) SIX(0, row, step) SIX(6, row, step)
#else
#define CASES(row, step) SIX(0, row, step)
#endif

static void tile_rows(I rows, I depth, const float *a, I lda, const float *b, float *c, I ldc, const float *start) {
    switch (rows) { CASES(lda, 1) }
}

static void tile_packed(I rows, I depth, const float *a, const float *b, float *c, I ldc, const float *start) {
    switch (rows) { CASES(1, ROWS) }
}

/* Computes c = start + a b, or c += a b, for any number of rows and of panels b. */
static void multiply(I rows, I depth, I columns, const float *a, I lda, const float *b, float *c, I ldc,
                     const float *start) {
    for (I k = 0; k < depth; k += DEPTH)
        for (I n = 0; n < columns; n += WIDTH)
            for (I r = 0; r < rows; r += ROWS)
                tile_rows(least(ROWS, rows - r), least(DEPTH, depth - k), a + r * lda + k, lda,
                          b + n * depth + k * WIDTH, c + r * ldc + n, ldc, k ? 0 : start);
}

/* Packs the panels of w^T, where w is (4 * hidden, depth): the four gates of each block of units. */
static void pack_gates(I hidden, I depth, const float *w, float *to) {
    for (I unit = 0; unit < hidden; unit += WIDTH)
        for (I gate = 0; gate < 4; gate++)
            for (I k = 0; k < depth; k++, to += WIDTH)
                for (I j = 0; j < WIDTH; j++) to[j] = w[(gate * hidden + unit + j) * depth + k];
}

/* Packs the panels of w, which is (depth, columns); the last panel is padded with zeros. */
static void pack_columns(I depth, I columns, const float *w, float *to) {
    for (I n = 0; n < columns; n += WIDTH)
        for (I k = 0; k < depth; k++, to += WIDTH) {
            const float *from = w + k * columns + n;
            if (n + WIDTH <= columns) {
                put(to, get(from));
                put(to + LANES, get(from + LANES));
            } else
                for (I j = 0; j < WIDTH; j++) to[j] = n + j < columns ? from[j] : 0;
        }
}

/* Packs x^T for `tile_packed`: groups of ROWS columns of x with consecutive rows. */
static void pack_transposed(I rows, I columns, const float *x, I ldx, float *to) {
    for (I m = 0; m < columns; m += ROWS)
        for (I k = 0; k < rows; k++, to += ROWS) {
            const float *from = x + k * ldx + m;
            if (m + COPIED <= columns)
                for (I i = 0; i < ROWS; i += LANES) put(to + i, get(from + i)); /* extra values are overwritten */
            else
                for (I i = 0; i < least(ROWS, columns - m); i++) to[i] = from[i];
        }
}

/* Activates one block of units in one step: the gates in place, and the new cells and states. */
static void activate(I batch, I hidden, float *gates, const float *before, float *cells, float *states) {
    for (I row = 0; row < batch; row++)
        for (I j = 0; j < WIDTH; j += LANES) {
            float *gate = gates + row * 4 * WIDTH + j;
            I at = row * hidden + j;
            vec i = sigmoid(get(gate)), f = sigmoid(get(gate + WIDTH));
            vec g = tangent(get(gate + 2 * WIDTH)), o = sigmoid(get(gate + 3 * WIDTH));
            vec cell = before ? f * get(before + at) + i * g : i * g;
            put(gate, i);
            put(gate + WIDTH, f);
            put(gate + 2 * WIDTH, g);
            put(gate + 3 * WIDTH, o);
            put(cells + at, cell);
            put(states + at, o * tangent(cell));
        }
}

I lstm_width(void) { return WIDTH; }

static I steps_ahead(I batch) { return (AHEAD + batch - 1) / batch; }

/* Floats of scratch memory that `lstm_forward` needs. */
I lstm_forward_floats(I batch, I inputs, I hidden, I keep) {
    return 4 * hidden * (inputs + hidden + (keep ? 0 : steps_ahead(batch) * batch));
}

/* Computes all states and, for the backward pass, all cells and gates. Without `gates`, `cells` holds only the last
 * step. */
void lstm_forward(I steps, I batch, I inputs, I hidden, const float *x, const float *w_x, const float *w_h,
                  const float *bias, float *states, float *cells, float *gates, float *scratch) {
    float *panels_x = scratch, *panels_h = panels_x + 4 * hidden * inputs;
    I size = batch * hidden, keep = gates != 0, ahead = steps_ahead(batch), span = (keep ? steps : ahead) * batch;
    if (!keep) gates = panels_h + 4 * hidden * hidden;
    pack_gates(hidden, inputs, w_x, panels_x);
    pack_gates(hidden, hidden, w_h, panels_h);
    for (I first = 0; first < steps; first += ahead) {
        I end = least(first + ahead, steps), offset = keep ? first * batch : 0;
        for (I unit = 0; unit < hidden; unit += WIDTH)
            for (I gate = 0; gate < 4; gate++)
                multiply((end - first) * batch, inputs, WIDTH, x + first * batch * inputs, inputs,
                         panels_x + (4 * unit + gate * WIDTH) * inputs,
                         gates + (unit * span + offset * WIDTH) * 4 + gate * WIDTH, 4 * WIDTH,
                         bias + gate * hidden + unit);
        for (I t = first; t < end; t++) {
            float *cell = keep ? cells + t * size : cells;
            const float *before = t == 0 ? 0 : keep ? cell - size : cells;
            for (I unit = 0; unit < hidden; unit += WIDTH) {
                float *block = gates + (unit * span + (offset + (t - first) * batch) * WIDTH) * 4;
                for (I gate = 0; t && gate < 4; gate++)
                    multiply(batch, hidden, WIDTH, states + (t - 1) * size, hidden,
                             panels_h + (4 * unit + gate * WIDTH) * hidden, block + gate * WIDTH, 4 * WIDTH, 0);
                activate(batch, hidden, block, t ? before + unit : 0, cell + unit, states + t * size + unit);
            }
        }
    }
}

/* Computes one step of the backward pass: the gradients of the gates before activation and, in place, of the cells of
 * the previous step; the gradients of the bias are accumulated. The gradient of the states is the sum of `later`, from
 * the next step, and `given`, from the caller; either may be 0. */
static void step_back(I batch, I hidden, I span, const float *gates, const float *before, const float *cells,
                      const float *later, const float *given, I given_row, float *d_cells, float *d_gates, I ld,
                      float *d_bias) {
    for (I unit = 0; unit < hidden; unit += LANES) {
        const float *gate = gates + (unit / WIDTH * span) * 4 * WIDTH + unit % WIDTH;
        vec sums[4] = {{0}};
        for (I row = 0; row < batch; row++, gate += 4 * WIDTH) {
            I at = row * hidden + unit;
            vec i = get(gate), f = get(gate + WIDTH), g = get(gate + 2 * WIDTH), o = get(gate + 3 * WIDTH);
            vec bent = tangent(get(cells + at)), d_state = {0}, d[4] = {{0}};
            if (later) d_state += get(later + at);
            if (given) d_state += get(given + row * given_row + unit);
            vec d_cell = get(d_cells + at) + d_state * o * (1.0f - bent * bent);
            put(d_cells + at, d_cell * f);
            d[0] = d_cell * g * i * (1.0f - i);
            if (before) d[1] = d_cell * get(before + at) * f * (1.0f - f);
            d[2] = d_cell * i * (1.0f - g * g);
            d[3] = d_state * bent * o * (1.0f - o);
            for (I n = 0; n < 4; n++) {
                put(d_gates + row * ld + n * hidden + unit, d[n]);
                sums[n] += d[n];
            }
        }
        for (I n = 0; n < 4; n++) put(d_bias + n * hidden + unit, get(d_bias + n * hidden + unit) + sums[n]);
    }
}

/* Computes d_w = d_gates^T x, or d_w += d_gates^T x. d_gates is (rows, units) with rows of length `ld`, x is
 * (rows, features), d_w is (units, padded features). */
static void weigh(I rows, I units, I features, const float *d_gates, I ld, const float *x, float *d_w, I add,
                  float *scratch) {
    const float zero[WIDTH] = {0};
    I wide = filled(features);
    float *right = scratch, *left = right + GATHER * wide;
    for (; rows > 0; rows -= GATHER, x += GATHER * features, d_gates += GATHER * ld, add = 1) {
        I depth = least(GATHER, rows);
        pack_columns(depth, features, x, right);
        for (I first = 0; first < units; first += BLOCK) {
            I count = least(BLOCK, units - first);
            pack_transposed(depth, count, d_gates + first, ld, left);
            for (I n = 0; n < wide; n += WIDTH)
                for (I m = 0; m < count; m += ROWS)
                    tile_packed(least(ROWS, count - m), depth, left + m * depth, right + n * depth,
                                d_w + (first + m) * wide + n, wide, add ? 0 : zero);
        }
    }
}

static I steps_gathered(I batch) { return most(1, GATHER / batch); }

/* Length of the rows of the gates' gradients; with a power of 2 they would collide in the cache. */
static I gradient_row(I hidden) { return 4 * hidden + WIDTH; }

/* Floats of scratch memory that `lstm_backward` needs. */
I lstm_backward_floats(I batch, I inputs, I hidden) {
    I gathered = steps_gathered(batch) * batch * gradient_row(hidden);
    I packed = GATHER * (most(filled(inputs), hidden) + BLOCK) + LANES;
    return 4 * hidden * (filled(inputs) + hidden) + batch * hidden + gathered + packed;
}

/* `given` is the gradient of the states (0 if missing), with its distances between steps and between rows; `d_cells` is
 * the gradient of the last cells and is overwritten. d_x, which may be 0, and d_w_x have rows of `inputs` padded to a
 * multiple of WIDTH. */
void lstm_backward(I steps, I batch, I inputs, I hidden, const float *x, const float *w_x, const float *w_h,
                   const float *states, const float *cells, const float *gates, const float *given, I given_step,
                   I given_row, float *d_cells, float *d_x, float *d_w_x, float *d_w_h, float *d_bias,
                   float *scratch) {
    const float zero[WIDTH] = {0};
    I size = batch * hidden, ld = gradient_row(hidden), wide = filled(inputs), gathered = steps_gathered(batch);
    float *panels_x = scratch, *panels_h = panels_x + 4 * hidden * wide, *later = panels_h + 4 * hidden * hidden;
    float *d_gates = later + size, *packed = d_gates + gathered * batch * ld;
    if (d_x) pack_columns(4 * hidden, inputs, w_x, panels_x);
    pack_columns(4 * hidden, hidden, w_h, panels_h);
    memset(d_bias, 0, 4 * hidden * sizeof *d_bias);
    if (steps == 1) memset(d_w_h, 0, 4 * hidden * hidden * sizeof *d_w_h);
    for (I end = steps; end > 0; end -= gathered) {
        I first = most(0, end - gathered), rows = (end - first) * batch;
        for (I t = end - 1; t >= first; t--) {
            float *d_gate = d_gates + (t - first) * batch * ld;
            step_back(batch, hidden, steps * batch, gates + t * batch * 4 * WIDTH, t ? cells + (t - 1) * size : 0,
                      cells + t * size, t < steps - 1 ? later : 0, given ? given + t * given_step : 0, given_row,
                      d_cells, d_gate, ld, d_bias);
            if (t) multiply(batch, 4 * hidden, hidden, d_gate, ld, panels_h, later, hidden, zero);
        }
        if (d_x) multiply(rows, 4 * hidden, wide, d_gates, ld, panels_x, d_x + first * batch * wide, wide, zero);
        weigh(rows, 4 * hidden, inputs, d_gates, ld, x + first * batch * inputs, d_w_x, end < steps, packed);
        I skipped = first ? 0 : batch; /* the first step starts from a state of 0 */
        weigh(rows - skipped, 4 * hidden, hidden, d_gates + skipped * ld, ld,
              states + (first * batch - batch + skipped) * hidden, d_w_h, end < steps, packed);
    }
}
