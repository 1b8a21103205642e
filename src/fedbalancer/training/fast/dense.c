/* Products of a dense layer for small batches, and its SGD step.
 *
 * For a batch of ten, a library's matrix product is far below the speed of the processor, and the weights do not fit
 * its caches. Here each pass reads the weights once, with prefetching, while a tile of sums stays in registers. The
 * gradient of the input and the step are one pass. A unit whose gradient is 0 for the whole batch (its ReLU is off) is
 * skipped, and its weights are not read.
 *
 * w is out x in, x and z are batch x in, y and g are batch x out, row-major. Single thread, float32, no state, any
 * sizes and alignments; the order of every sum is fixed. */
#include <stddef.h>

#if defined(LANES) /* any width works, but the processor's own is fastest */
#define NATIVE 0
#elif defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX__)
#define LANES 8
#else
#define LANES 4
#endif
#ifndef NATIVE
#define NATIVE 1
#endif

#define TILE 6            /* rows of a batch, or of w, in registers: 6 x 2 sums beside 3 operands */
#define WIDE (2 * LANES)  /* columns in registers */
#define CHUNK 16          /* maximum rows of a batch in one pass over w */
#define BLOCK 2560        /* floats of x that stay in the L1 cache */
#define BAND 32           /* rows of w whose sums are kept while the columns are processed in blocks */
#define SLAB (3 * TILE)   /* rows of w that are mixed together; more do not fit the L1 cache */
#define ROWS_AHEAD 4
#define COLUMNS_AHEAD 64

#define INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define EACH(i, n) _Pragma("unroll") for (int i = 0; i < n; i++)
#else
#define EACH(i, n) _Pragma("GCC unroll 8") for (int i = 0; i < n; i++)
#endif

/* Keeps a loaded vector in its register: if the load is repeated as an operand of every use, loads are the limit. */
#if NATIVE && defined(__AVX512F__)
#define KEEP(v) __asm__("" : "+v"(v))
#elif NATIVE && defined(__SSE__)
#define KEEP(v) __asm__("" : "+x"(v))
#elif NATIVE && defined(__aarch64__)
#define KEEP(v) __asm__("" : "+w"(v))
#else
#define KEEP(v) (void)(v)
#endif

/* Expands to call(B) with the compile-time constant B = rows. */
#define BY_ROWS(rows, call)                                                                                           \
    switch (rows) {                                                                                                   \
        case 1: call(1); break;                                                                                       \
        case 2: call(2); break;                                                                                       \
        case 3: call(3); break;                                                                                       \
        case 4: call(4); break;                                                                                       \
        case 5: call(5); break;                                                                                       \
        default: call(6);                                                                                             \
    }

typedef ptrdiff_t I;
typedef float vec __attribute__((vector_size(4 * LANES)));
typedef float loose __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

INLINE vec get(const float *p) { return *(const loose *)p; }
INLINE void put(float *p, vec v) { *(loose *)p = v; }
INLINE vec all(float x) { return x - (vec){0}; }
INLINE I least(I a, I b) { return a < b ? a : b; }
INLINE I panels(I columns) { return (columns + WIDE - 1) / WIDE * WIDE; }

/* Size of the next tile of the remaining rows; tiles have nearly equal sizes. */
INLINE I next_tile(I left) { return left / ((left + TILE - 1) / TILE); }

INLINE float total(vec v) {
    float t[LANES];
    put(t, v);
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++) t[i] += t[i + half];
    return t[0];
}

/* Floats of scratch memory that the functions below need for `rows` rows of x. */
I dense_floats(I rows, I in) { return rows * (panels(in) + SLAB) + CHUNK * panels(in); }

/* Computes sums[o][b] (+)= x[b] * w[o], lane by lane, over n columns, for B rows of the packed x and O rows of w. */
INLINE void dot_tile(const int B, const int O, const int fetch, float *sums, I batch, const float *x, const float *w,
                     I in, I n, int first) {
    vec s[TILE][2];
    EACH(b, B) EACH(o, O) s[b][o] = first ? (vec){0} : get(sums + (o * batch + b) * LANES);
    for (I i = 0; i < n; i += LANES, x += B * LANES) {
        vec v[2];
        EACH(o, O) {
            v[o] = get(w + o * in + i);
            KEEP(v[o]);
            if (fetch) __builtin_prefetch(w + (o + ROWS_AHEAD) * in + i, 0, 2);
        }
        EACH(b, B) {
            vec u = get(x + b * LANES);
            KEEP(u);
            EACH(o, O) s[b][o] += u * v[o];
        }
    }
    EACH(b, B) EACH(o, O) put(sums + (o * batch + b) * LANES, s[b][o]);
}

INLINE void dot_rows(const int O, float *sums, const float *x, const float *w, I batch, I in, I at, I n) {
    I whole = in / LANES * LANES;
    for (I b = 0, rows; b < batch; b += rows) {
        const int first = at == 0;
        rows = next_tile(batch - b);
#define CALL(B)                                                                                                       \
    if (b == 0) dot_tile(B, O, 1, sums, batch, x + at * B, w + at, in, n, first);                                     \
    else dot_tile(B, O, 0, sums + b * LANES, batch, x + b * whole + at * B, w + at, in, n, first)
        BY_ROWS(rows, CALL)
#undef CALL
    }
}

static void dots(float *y, const float *x, const float *w, I batch, I in, I out, float *packed) {
    float sums[BAND * CHUNK * LANES];
    I whole = in / LANES * LANES, blocks = (whole * batch + BLOCK - 1) / BLOCK;
    for (I b = 0, rows; b < batch; b += rows) {
        rows = next_tile(batch - b);
        for (I i = 0; i < whole; i += LANES)
            for (I r = 0; r < rows; r++) put(packed + b * whole + i * rows + r * LANES, get(x + (b + r) * in + i));
    }
    for (I from = 0; from < out; from += BAND, w += BAND * in) {
        I rows = least(BAND, out - from), o;
        for (I block = 0, at = 0, n; block < blocks; block++, at += n) {
            n = (whole - at) / (blocks - block) / LANES * LANES;
            for (o = 0; o + 2 <= rows; o += 2)
                dot_rows(2, sums + o * batch * LANES, packed, w + o * in, batch, in, at, n);
            if (o < rows) dot_rows(1, sums + o * batch * LANES, packed, w + o * in, batch, in, at, n);
        }
        for (o = 0; o < rows; o++)
            for (I b = 0; b < batch; b++) {
                float s = whole ? total(get(sums + (o * batch + b) * LANES)) : 0;
                for (I i = whole; i < in; i++) s += x[b * in + i] * w[o * in + i];
                y[b * out + from + o] += s;
            }
    }
}

/* Computes y += x w^T. */
void dense_dots(float *y, const float *x, const float *w, I batch, I in, I out, float *scratch) {
    for (I b = 0; b < batch; b += CHUNK) dots(y + b * out, x + b * in, w, least(CHUNK, batch - b), in, out, scratch);
}

/* Computes z[b] += sum over r of g[r][b] w[row[r]], for B rows of a panel of z. */
INLINE void mix_tile(const int B, const int fetch, float *z, const float *g, I batch, const float *w, const I *row,
                     I rows) {
    vec s[TILE][2];
    EACH(b, B) EACH(v, 2) s[b][v] = get(z + b * WIDE + v * LANES);
    for (I r = 0; r < rows; r++, g += batch) {
        const float *from = w + row[r];
        vec u = get(from), v = get(from + LANES);
        KEEP(u);
        KEEP(v);
        if (fetch) __builtin_prefetch(from + COLUMNS_AHEAD, 0, 3);
        EACH(b, B) {
            vec f = all(g[b]);
            KEEP(f);
            s[b][0] += f * u;
            s[b][1] += f * v;
        }
    }
    EACH(b, B) EACH(v, 2) put(z + b * WIDE + v * LANES, s[b][v]);
}

INLINE void mix_panel(const int fetch, float *z, const float *g, I batch, const float *w, const I *row, I rows) {
    for (I b = 0, n; b < batch; b += n) {
        n = next_tile(batch - b);
#define CALL(B)                                                                                                       \
    if (b == 0) mix_tile(B, fetch, z, g, batch, w, row, rows);                                                        \
    else mix_tile(B, 0, z + b * WIDE, g + b, batch, w, row, rows)
        BY_ROWS(n, CALL)
#undef CALL
    }
}

INLINE void copy_panel(float *to, const float *w, const I *row, I rows, I columns) {
    for (I r = 0; r < rows; r++, to += WIDE) {
        const float *from = w + row[r];
        __builtin_prefetch(from + COLUMNS_AHEAD, 0, 3);
        if (columns == WIDE) {
            EACH(v, 2) put(to + v * LANES, get(from + v * LANES));
        } else
            for (I i = 0; i < WIDE; i++) to[i] = i < columns ? from[i] : 0;
    }
}

/* A step of the weights: to = from + pull * (base - from) + a product. `base`, or both `base` and `from`, may be 0;
 * `to` may be `from`. */
typedef struct {
    float *to;
    const float *from, *base;
    float pull;
} Step;

/* Steps TILE rows and a panel of columns; the product is g^T x, both packed. */
INLINE void step_tile(Step s, const I *row, I rows, I columns, const float *g, const float *x, I rank) {
    vec t[TILE][2];
    EACH(o, TILE) t[o][0] = t[o][1] = (vec){0};
    for (I r = 0; r < rank; r++, x += WIDE, g += TILE) {
        vec u = get(x), v = get(x + LANES);
        KEEP(u);
        KEEP(v);
        EACH(o, TILE) {
            vec f = all(g[o]);
            t[o][0] += f * u;
            t[o][1] += f * v;
        }
    }
    float rest[TILE][WIDE];
    if (rows == TILE && columns == WIDE) {
        EACH(o, TILE) EACH(v, 2) {
            I at = row[o] + v * LANES;
            vec w = s.from ? get(s.from + at) : (vec){0};
            if (s.base) t[o][v] += s.pull * (get(s.base + at) - w);
            put(s.to + at, w + t[o][v]);
        }
        return;
    }
    EACH(o, TILE) EACH(v, 2) put(rest[o] + v * LANES, t[o][v]);
    for (I o = 0; o < rows; o++)
        for (I i = 0, at = row[o]; i < columns; i++, at++) {
            float w = s.from ? s.from[at] : 0;
            if (s.base) rest[o][i] += s.pull * (s.base[at] - w);
            s.to[at] = w + rest[o][i];
        }
}

/* Steps a row without a product. */
static void step_row(Step s, I at, I in) {
    if (!s.to || (s.to == s.from && !s.base)) return;
    for (I i = at; i < at + in; i++) {
        float w = s.from ? s.from[i] : 0;
        s.to[i] = s.base ? w + s.pull * (s.base[i] - w) : w;
    }
}

static void pack_panels(float *packed, const float *x, I rank, I in) {
    for (I i = 0; i < in; i += WIDE)
        for (I r = 0; r < rank; r++, packed += WIDE) {
            if (i + WIDE <= in) {
                EACH(v, 2) put(packed + v * LANES, get(x + r * in + i + v * LANES));
            } else
                for (I j = 0; j < WIDE; j++) packed[j] = i + j < in ? x[r * in + i + j] : 0;
        }
}

INLINE int any(const float *g, I out, I rank) {
    for (I r = 0; r < rank; r++)
        if (g[r * out] != 0) return 1;
    return 0;
}

/* Computes z += g from, if there is a z (rank is at most CHUNK); then to = ... + scale g^T x, if there is a `to`. With
 * z it runs from the last row to the first, because the last weights that `dots` has read are still in the cache. */
static void pass(float *z, Step s, const float *g, float scale, const float *x, I rank, I in, I out, float *scratch) {
    float *mixed = scratch, *wide = mixed + CHUNK * panels(in), *tall = wide + rank * panels(in);
    float near[SLAB * WIDE], beside[SLAB * CHUNK];
    I row[SLAB], near_row[SLAB];
    int far = (in + 64) % 1024 >= 128; /* otherwise rows collide in the L1 cache and are copied side by side */
    EACH(r, SLAB) near_row[r] = r * WIDE;
    if (s.to) pack_panels(wide, x, rank, in);
    if (z) for (I i = 0; i < rank * panels(in); i++) mixed[i] = 0;
    for (I done = 0; done < out;) {
        I rows = 0;
        for (; done < out && rows < SLAB; done++) {
            I o = z ? out - 1 - done : done;
            if (!any(g + o, out, rank)) {
                step_row(s, o * in, in);
                continue;
            }
            float *tile = tall + rows / TILE * TILE * rank + rows % TILE;
            if (s.to) for (I r = 0; r < rank; r++) tile[r * TILE] = scale * g[r * out + o];
            if (z) for (I b = 0; b < rank; b++) beside[rows * rank + b] = g[b * out + o];
            row[rows++] = o * in;
        }
        for (I o = rows; s.to && o % TILE; o++) /* the rest of a tile */
            for (I r = 0; r < rank; r++) tall[o / TILE * TILE * rank + r * TILE + o % TILE] = 0;
        for (I i = 0; i < in; i += WIDE) {
            I columns = least(WIDE, in - i);
            Step here = {s.to ? s.to + i : 0, s.from ? s.from + i : 0, s.base ? s.base + i : 0, s.pull};
            if (z && far && columns == WIDE)
                mix_panel(1, mixed + i * rank, beside, rank, here.from, row, rows);
            else if (z) {
                copy_panel(near, here.from, row, rows, columns);
                mix_panel(0, mixed + i * rank, beside, rank, near, near_row, rows);
            }
            for (I t = 0; s.to && t < rows; t += TILE) {
                I n = least(TILE, rows - t);
                for (I o = t; o < t + n; o++) {
                    if (!z && s.from) __builtin_prefetch(here.from + row[o] + COLUMNS_AHEAD, 1, 2);
                    if (s.base) __builtin_prefetch(here.base + row[o] + COLUMNS_AHEAD, 0, 2);
                }
                step_tile(here, row + t, n, columns, tall + t * rank, wide + i * rank, rank);
            }
        }
    }
    for (I i = 0; z && i < in; i += WIDE)
        for (I b = 0; b < rank; b++)
            for (I j = 0; j < least(WIDE, in - i); j++) z[b * in + i + j] += mixed[i * rank + b * WIDE + j];
}

/* Computes z += g w. */
void dense_mix(float *z, const float *g, const float *w, I batch, I in, I out, float *scratch) {
    for (I b = 0; b < batch; b += CHUNK)
        pass(z + b * in, (Step){0, w, 0, 0}, g + b * out, 1, 0, least(CHUNK, batch - b), in, out, scratch);
}

/* Computes z += g from, if there is a z; then to = from + pull * (base - from) + scale g^T x, where g and x have `rank`
 * rows. `base`, or both `base` and `from`, may be 0; `to` may be `from`. */
void dense_step(float *z, float *to, const float *from, const float *base, float pull, const float *g, float scale,
                const float *x, I rank, I in, I out, float *scratch) {
    if (z && rank > CHUNK) {
        dense_mix(z, g, from, rank, in, out, scratch);
        z = 0;
    }
    pass(z, (Step){to, from, base, pull}, g, scale, x, rank, in, out, scratch);
}
