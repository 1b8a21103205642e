/* The scores of many words for a few rows, their softmax and cross-entropy, and the layer's SGD step.
 *
 * Scores have the layout (word, row), with rows padded to whole vectors: `pitch` floats per word. A product with the
 * weights reads them directly, and the softmax processes all rows at once. The kernel keeps the exponentials, minus the
 * sum of the row at the row's label; multiplied by `scale`, 1 / sum, this is the gradient of the row's loss. The
 * multiplication is not carried out: the small factors of the products are scaled instead, and no gradient of the
 * weights is formed.
 *
 * w is (word, width), x and z are (row, width); width is a multiple of LANES. Single thread, float32, no state, any
 * alignment; the order of every sum is fixed. */
#include <math.h>
#include "vectors.h"
#define DEPTH 128          /* words whose weights are processed together */
#define BLOCK (8 * ROWS)   /* words whose scores are computed while their weights are in the cache */

INLINE I filled(I n) { return (n + LANES - 1) / LANES * LANES; }

INLINE vec larger(vec a, vec b) {
    ints more = a > b;
    return (vec)((more & (ints)a) | (~more & (ints)b));
}

/* Computes exp(x) for x <= 0, as 2^n times a polynomial fitted to 3e-9. Below -87 it is exp(-87); NaN stays NaN. */
INLINE vec exponential(vec x) {
    const vec magic = all(12583039.0f); /* 1.5 * 2^23 + 127: adding it rounds, and leaves n + 127 in the lowest bits */
    ints low = x < all(-87.0f);
    x = (vec)((low & (ints)all(-87.0f)) | (~low & (ints)x));
    vec shifted = x * all(1.44269504f) + magic;
    vec r = x - (shifted - magic) * all(0.693147181f);
    vec p = r * all(1.38145988e-3f) + all(8.36871658e-3f);
    p = p * r + all(4.16683890e-2f);
    p = p * r + all(1.66665211e-1f);
    p = p * r + all(4.99999940e-1f);
    vec scale = (vec)((ints)shifted << 23);
    return scale * (p * (r * r) + r) + scale;
}

/* Computes c = start + a b or, without start, c += a b, for a few rows of c and V vectors. The elements of a are
 * a[i * row + k * step]; the rows of b are `ldb` apart. `start` has one number per row. */
INLINE void tile(int rows, int V, I depth, const float *a, I row, I step, const float *b, I ldb, float *c, I ldc,
                 const float *start) {
    vec sum[ROWS][2] = {{{0}}};
    const float *third[4] = {a, a + 3 * row, a + 6 * row, a + 9 * row}; /* so that addresses stay in registers */
#pragma GCC unroll 4
    for (I k = 0; k < depth; k++, b += ldb) {
        vec b0 = get(b), b1 = V > 1 ? get(b + LANES) : b0;
#pragma GCC unroll 12
        for (int i = 0; i < rows; i++) {
            vec x = all(third[i / 3][i % 3 * row]);
            sum[i][0] += x * b0;
            if (V > 1) sum[i][1] += x * b1;
        }
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            third[i] += step;
            __asm__("" : "+r"(third[i]));
        }
    }
#pragma GCC unroll 12
    for (int i = 0; i < rows; i++, c += ldc)
        for (int v = 0; v < V; v++) put(c + v * LANES, (start ? all(start[i]) : get(c + v * LANES)) + sum[i][v]);
}

#define CASE(n, V, row, step) case n: tile(n, V, depth, a, row, step, b, ldb, c, ldc, start); break;
#define SIX(n, V, row, step) \
    CASE(n + 1, V, row, step) CASE(n + 2, V, row, step) CASE(n + 3, V, row, step) \
    CASE(n + 4, V, row, step) CASE(n + 5, V, row, step) CASE(n + 6, V, row, step)
#if ROWS == 12
#define CASES(V, row, step) SIX(0, V, row, step) SIX(6, V, row, step)
#else
#define CASES(V, row, step) SIX(0, V, row, step)
#endif

/* The same for a row-major a with rows `lda` apart; b is a panel. */
static void by_rows(I rows, I wide, I depth, const float *a, I lda, const float *b, float *c, I ldc,
                    const float *start) {
    I ldb = wide;
    if (wide > LANES) switch (rows) { CASES(2, lda, 1) }
    else switch (rows) { CASES(1, lda, 1) }
}

/* The same for a column-major a: row i begins at a + i and continues every `lda`. */
static void by_columns(I rows, I wide, I depth, const float *a, I lda, const float *b, I ldb, float *c, I ldc) {
    const float *start = 0;
    if (wide > LANES) switch (rows) { CASES(2, 1, lda) }
    else switch (rows) { CASES(1, 1, lda) }
}

/* Prefetches the next values, if there are any. */
static void fetch(const float *from, I floats) {
    for (I i = 0; i < floats; i += 16) __builtin_prefetch(from + i, 0, 2);
}

I words_pitch(I rows) { return filled(rows); }
I words_lanes(void) { return LANES; }

/* Floats of scratch memory that any of the functions below needs. */
I words_floats(I rows, I width) { return filled(rows) * (width + 6); }

/* Packs x^T into panels of WIDTH rows; the last panel is padded with zeros to one or two vectors. */
static void pack_rows(I rows, I width, const float *x, float *to) {
    for (I first = 0, pitch = filled(rows); first < pitch; first += WIDTH) {
        I wide = least(WIDTH, pitch - first);
        for (I k = 0; k < width; k++, to += wide)
            for (I r = 0; r < wide; r++) to[r] = first + r < rows ? x[(first + r) * width + k] : 0;
    }
}

/* Packs the rows of x, each times its factor, into panels of WIDTH columns. */
static void pack_columns(I rows, I width, const float *x, const float *factor, float *to) {
    for (I n = 0; n < width; n += WIDTH) {
        I wide = least(WIDTH, width - n);
        for (I k = 0; k < rows; k++, to += wide)
            for (I j = 0; j < wide; j += LANES) put(to + j, get(x + k * width + n + j) * all(factor[k]));
    }
}

/* Computes the scores, and the largest score of each row. */
static void score(I rows, I width, I words, const float *panels, const float *w, const float *bias, float *e,
                  float *top) {
    I pitch = filled(rows);
    for (I r = 0; r < pitch; r++) top[r] = -INFINITY;
    for (I from = 0; from < words; from += BLOCK) {
        I to = least(from + BLOCK, words);
        fetch(w + to * width, least(BLOCK, words - to) * width);
        for (I r = 0; r < pitch; r += WIDTH)
            for (I o = from; o < to; o += ROWS)
                by_rows(least(ROWS, to - o), least(WIDTH, pitch - r), width, w + o * width, width, panels + r * width,
                        e + o * pitch + r, pitch, bias + o);
        for (I r = 0; r < pitch; r += LANES) {
            vec most = get(top + r);
            for (I o = from; o < to; o++) most = larger(get(e + o * pitch + r), most);
            put(top + r, most);
        }
    }
}

/* Replaces scores by their exponentials, with 1 for the largest of a row; sums them and their squares. */
static void exponentials(I pitch, I words, const float *top, float *e, float *sums, float *squares, float *near) {
    memset(sums, 0, pitch * sizeof *sums);
    memset(squares, 0, pitch * sizeof *squares);
    for (I from = 0; from < words; from += BLOCK) { /* sums of partial sums are more accurate */
        memset(near, 0, 2 * pitch * sizeof *near);
        for (I o = from; o < least(from + BLOCK, words); o++)
            for (I r = 0; r < pitch; r += LANES) {
                vec value = exponential(get(e + o * pitch + r) - get(top + r));
                put(e + o * pitch + r, value);
                put(near + r, get(near + r) + value);
                put(near + pitch + r, get(near + pitch + r) + value * value);
            }
        for (I r = 0; r < pitch; r += LANES) {
            put(sums + r, get(sums + r) + get(near + r));
            put(squares + r, get(squares + r) + get(near + pitch + r));
        }
    }
}

/* Computes e as described above, scale = 1 / sum, the losses of the rows, and the norms of the gradient's rows. */
void words_forward(I rows, I width, I words, const float *x, const float *w, const float *bias, const int64_t *labels,
                   float *e, float *scale, float *losses, float *norms, float *scratch) {
    I pitch = filled(rows);
    float *top = scratch, *chosen = top + pitch, *sums = chosen + pitch, *squares = sums + pitch;
    float *panels = squares + pitch;
    pack_rows(rows, width, x, panels);
    score(rows, width, words, panels, w, bias, e, top);
    for (I r = 0; r < rows; r++) chosen[r] = e[labels[r] * pitch + r];
    exponentials(pitch, words, top, e, sums, squares, panels);
    for (I r = 0; r < rows; r++) {
        float *label = e + labels[r] * pitch + r, was = *label;
        *label = was - sums[r];
        scale[r] = 1 / sums[r];
        losses[r] = logf(sums[r]) + (top[r] - chosen[r]);
        norms[r] = sqrtf(fabsf(squares[r] - was * was) + *label * *label) * scale[r];
    }
}

/* Computes z = (gradient of the scores) w. */
void words_back(I rows, I width, I words, const float *e, const float *scale, const float *w, float *z) {
    I pitch = filled(rows);
    memset(z, 0, rows * width * sizeof *z);
    for (I from = 0; from < words; from += DEPTH) {
        I depth = least(DEPTH, words - from);
        fetch(w + (from + depth) * width, least(DEPTH, words - from - depth) * width);
        for (I n = 0; n < width; n += WIDTH)
            for (I r = 0; r < rows; r += ROWS)
                by_columns(least(ROWS, rows - r), least(WIDTH, width - n), depth, e + from * pitch + r, pitch,
                           w + from * width + n, width, z + r * width + n, width);
    }
    for (I r = 0; r < rows; r++)
        for (I n = 0; n < width; n += LANES)
            put(z + r * width + n, get(z + r * width + n) * all(scale[r]));
}

/* Computes w -= rate * (its gradient); likewise the bias, if there is one. */
void words_step(I rows, I width, I words, const float *e, const float *scale, float rate, const float *x, float *w,
                float *bias, float *scratch) {
    I pitch = filled(rows);
    float *rates = scratch, *panels = rates + pitch;
    for (I r = 0; r < pitch; r++) rates[r] = r < rows ? -rate * scale[r] : 0;
    pack_columns(rows, width, x, rates, panels);
    for (I from = 0; from < words; from += ROWS) {
        I to = least(from + ROWS, words);
        fetch(w + to * width, least(ROWS, words - to) * width);
        for (I n = 0; n < width; n += WIDTH)
            by_rows(to - from, least(WIDTH, width - n), rows, e + from * pitch, pitch, panels + n * rows,
                    w + from * width + n, width, 0);
        for (I o = from; bias && o < to; o++) {
            vec sum = {0};
            for (I r = 0; r < pitch; r += LANES) sum += get(e + o * pitch + r) * get(rates + r);
            for (int i = 0; i < LANES; i++) bias[o] += sum[i];
        }
    }
}

/* Computes the products of all pairs of rows of the gradient of the scores, as (row, row) with rows of length `pitch`.
 * Only the values on and above the diagonal are valid. */
void words_products(I rows, I words, const float *e, const float *scale, float *to) {
    I pitch = filled(rows);
    memset(to, 0, rows * pitch * sizeof *to);
    for (I from = 0; from < words; from += DEPTH)
        for (I r = 0, depth = least(DEPTH, words - from); r < rows; r += ROWS)
            for (I s = r / LANES * LANES; s < pitch; s += WIDTH)
                by_columns(least(ROWS, rows - r), least(WIDTH, pitch - s), depth, e + from * pitch + r, pitch,
                           e + from * pitch + s, pitch, to + r * pitch + s, pitch);
    for (I r = 0; r < rows; r++)
        for (I s = 0; s < rows; s++) to[r * pitch + s] *= scale[r] * scale[s];
}
