/* Convolution (stride 1), bias, max-pooling and ReLU in one pass, and their gradients.
 *
 * Images are stored with channels last (N, H, W, C) and zeros around them. One row of a filter's window is therefore
 * contiguous in memory, and a convolution is a matrix product without unfolding: positions times (window, channels)
 * times filters, with a tile of positions and filters in registers.
 *
 * After the pooling only one position of a window has a gradient, and none if the ReLU is off. Both gradients visit
 * only these positions. The gradient of the weights keeps a piece of one filter in registers and loops over its
 * positions; that of the input keeps a piece of the image in registers and loops over the filters of that position.
 *
 * Single thread, float32, no state, any sizes and alignments; the order of every sum is fixed. */
#include <stdint.h>
#include <string.h>

#ifndef LANES
#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX__)
#define LANES 8
#else
#define LANES 4
#endif
#endif
#ifndef TILE /* positions in a tile: with two vectors of filters each, they fill the registers */
#if defined(__AVX512F__) || defined(__aarch64__)
#define TILE 12
#else
#define TILE 6
#endif
#endif
#define WIDE (2 * LANES) /* filters in a panel */
#define STRIP 256        /* approximate number of positions whose outputs are held between convolution and pooling */

typedef float vf __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef int32_t vi __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef int64_t I;
#define INLINE static inline __attribute__((always_inline))
#define LOAD(p) (*(const vf *)(p))
#define STORE(p, v) (*(vf *)(p) = (v))
#define PICK(mask, a, b) (((mask) & (a)) | (~(mask) & (b)))

typedef struct {
    I images, channels, height, width; /* of the input */
    I filters, rows, columns;          /* number and window of the filters */
    I top, left, padded_height, padded_width;
    I pool_rows, pool_columns; /* 1, 1 without pooling */
    I out_height, out_width;   /* after the pooling */
    I used_height, used_width; /* the part of the output before the pooling that lies in a pooling window */
    I relu;
} Block;

INLINE I least(I a, I b) { return a < b ? a : b; }
INLINE I vectors(I count) { return (count + LANES - 1) / LANES; }

/* Number of floats of a padded batch; a vector may extend beyond its end. */
I conv_padded_floats(const Block *b) { return b->images * b->padded_height * b->padded_width * b->channels + LANES; }

static I strip_rows(const Block *b) { /* pooled rows in a strip */
    I rows = STRIP / (b->pool_rows * b->used_width);
    return rows < 1 ? 1 : least(rows, b->out_height);
}
static I strip_positions(const Block *b) { return strip_rows(b) * b->pool_rows * b->used_width + TILE; }
static I direct_floats(const Block *b) {
    I panels = vectors(b->filters) * LANES * b->rows * b->columns * b->channels;
    return panels + strip_positions(b) * (WIDE + 1);
}

/* Copies x, with any strides, into a padded batch with channels last. */
static void pad(const Block *b, const float *x, const I *stride, float *out) {
    I c = b->channels, line = b->padded_width * c;
    memset(out, 0, conv_padded_floats(b) * sizeof(float));
    for (I n = 0; n < b->images; n++)
        for (I y = 0; y < b->height; y++) {
            const float *from = x + n * stride[0] + y * stride[2];
            float *to = out + (n * b->padded_height + b->top + y) * line + b->left * c;
            if ((c == 1 || stride[1] == 1) && stride[3] == c) {
                memcpy(to, from, b->width * c * sizeof(float));
                continue;
            }
            for (I k = 0; k < c; k++)
                for (I i = 0; i < b->width; i++)
                    to[i * c + k] = from[k * stride[1] + i * stride[3]];
        }
}

/* Packs filters in torch's layout (filter, channel, row, column) into panels of up to WIDE filters (row, column,
 * channel, filter). */
static void pack_panels(const Block *b, const float *w, float *out) {
    I window = b->rows * b->columns, depth = window * b->channels;
    for (I first = 0; first < b->filters; first += WIDE) {
        I wide = least(vectors(b->filters - first) * LANES, WIDE);
        for (I f = 0; f < wide; f++)
            for (I c = 0; c < b->channels; c++)
                for (I k = 0; k < window; k++)
                    out[(k * b->channels + c) * wide + f] =
                        first + f < b->filters ? w[((first + f) * b->channels + c) * window + k] : 0;
        out += depth * wide;
    }
}

/* Multiplies TILE positions, at x + at[0], x + at[1], ..., by V vectors of filters, over all rows of the window. */
INLINE void tile(int V, const float *x, const int32_t *at, I rows, I row, I line, const float *w, float *out) {
    vf sum[TILE][2];
    const float *a[TILE];
#pragma GCC unroll 16
    for (int p = 0; p < TILE; p++) {
        a[p] = x + at[p];
        for (int v = 0; v < V; v++)
            sum[p][v] = (vf){0};
    }
    for (I r = 0; r < rows; r++) {
        for (I k = 0; k < row; k++, w += V * LANES) {
            vf first = LOAD(w), second = V > 1 ? LOAD(w + LANES) : first;
#pragma GCC unroll 16
            for (int p = 0; p < TILE; p++) {
                float value = a[p][k];
                sum[p][0] += value * first;
                if (V > 1)
                    sum[p][1] += value * second;
            }
        }
#pragma GCC unroll 16
        for (int p = 0; p < TILE; p++)
            a[p] += line;
    }
#pragma GCC unroll 16
    for (int p = 0; p < TILE; p++)
        for (int v = 0; v < V; v++)
            STORE(out + (p * V + v) * LANES, sum[p][v]);
}

typedef void Tile(const float *x, const int32_t *at, I rows, I row, I line, const float *w, float *out);
static void tile1(const float *x, const int32_t *at, I rows, I row, I line, const float *w, float *out) {
    tile(1, x, at, rows, row, line, w, out);
}
static void tile2(const float *x, const int32_t *at, I rows, I row, I line, const float *w, float *out) {
    tile(2, x, at, rows, row, line, w, out);
}
INLINE Tile *tile_for(I wide) { return wide == WIDE ? tile2 : tile1; }

/* Writes the maximum of a window plus the bias, and its place in the window (-1 if the ReLU is off), for up to LANES
 * filters. Rows of sums are `pitch` floats apart. NaN counts as the maximum, as in torch. */
INLINE void pool_this(const Block *b, const float *sums, I wide, I pitch, I rows, I columns, I full, vf bias, I filters,
                      float *y, int32_t *at) {
    vf top = LOAD(sums);
    vi where = (vi){0};
    for (I i = 0; i < rows; i++)
        for (I j = i ? 0 : 1; j < columns; j++) {
            vf value = LOAD(sums + i * pitch + j * wide);
            vi better = (value > top) | (value != value);
            top = (vf)PICK(better, (vi)value, (vi)top);
            where = PICK(better, (vi){0} + (int32_t)(i * full + j), where);
        }
    top += bias;
    if (b->relu) {
        vi off = top <= 0;
        top = (vf)(~off & (vi)top);
        where |= off;
    }
    if (filters == LANES) {
        STORE(y, top);
        *(vi *)at = where;
    } else {
        memcpy(y, &top, filters * sizeof(float));
        memcpy(at, &where, filters * sizeof(float));
    }
}
INLINE void pool_window(const Block *b, const float *sums, I wide, I pitch, I rows, I columns, vf bias, I filters,
                        float *y, int32_t *at) {
    if (rows == 2 && columns == 2 && b->pool_columns == 2) /* common windows without loops */
        pool_this(b, sums, wide, pitch, 2, 2, 2, bias, filters, y, at);
    else if (rows == 1 && columns == 4)
        pool_this(b, sums, wide, pitch, 1, 4, 4, bias, filters, y, at);
    else
        pool_this(b, sums, wide, pitch, rows, columns, b->pool_columns, bias, filters, y, at);
}

/* Loads the first `count` values of a vector; the rest is 0. */
INLINE vf some_of(const float *from, I count) {
    float values[LANES] = {0};
    memcpy(values, from, count * sizeof(float));
    return LOAD(values);
}

/* Pools the sums of a strip, rows `from` to `to` of the pooled output, for the panel of filters that begins at
 * `first`. */
static void pool(const Block *b, const float *sums, I wide, I first, I from, I to, const float *bias, float *y,
                 int32_t *at) {
    I pitch = b->used_width * wide;
    for (I v = 0; v < wide; v += LANES) {
        I filters = least(b->filters - first - v, LANES);
        vf shift = some_of(bias + first + v, filters);
        for (I i = from; i < to; i++) {
            I rows = least(b->pool_rows, b->used_height - i * b->pool_rows);
            for (I j = 0; j < b->out_width; j++) {
                I columns = least(b->pool_columns, b->used_width - j * b->pool_columns);
                const float *window = sums + (i - from) * b->pool_rows * pitch + j * b->pool_columns * wide + v;
                I out = (i * b->out_width + j) * b->filters + first + v;
                pool_window(b, window, wide, pitch, rows, columns, shift, filters, y + out, at + out);
            }
        }
    }
}

/* What a batch norm needs of all outputs, with filters padded to whole vectors: the sum over all positions of the
 * squared distances from the means and, if there is memory for it, the outputs in tiles of 4 x 4. */
typedef struct {
    const float *negative; /* the negated means */
    double *squares;
    float *kept;
} Watch;
INLINE void add_up_lanes(double *to, vf values) {
    for (int i = 0; i < LANES; i++)
        to[i] += values[i];
}
static void squares_of(const Watch *watch, const float *sums, I wide, I first, I count) {
    for (I v = 0; v < wide; v += LANES) {
        vf away = LOAD(watch->negative + first + v), even = {0}, odd = {0};
        for (I p = 0; p < count; p++) {
            vf far = LOAD(sums + p * wide + v) + away;
            if (p & 1)
                odd += far * far;
            else
                even += far * far;
        }
        add_up_lanes(watch->squares + first + v, even + odd);
    }
}

/* Direct convolution by tiles of positions and filters, one strip of an image at a time. */
static void direct(const Block *b, const float *padded, const float *w, const float *bias, float *scratch, float *y,
                   int32_t *at, const Watch *watch) {
    I row = b->columns * b->channels, line = b->padded_width * b->channels, depth = b->rows * row;
    float *panels = scratch, *sums = panels + vectors(b->filters) * LANES * depth;
    int32_t *places = (int32_t *)(sums + strip_positions(b) * WIDE);
    pack_panels(b, w, panels);
    for (I n = 0; n < b->images; n++)
        for (I from = 0, strip = strip_rows(b); from < b->out_height; from += strip) {
            I to = least(from + strip, b->out_height);
            I bottom = least(to * b->pool_rows, b->used_height), start = from * b->pool_rows;
            I count = (bottom - start) * b->used_width;
            const float *image = padded + (n * b->padded_height + start) * line;
            for (I p = 0; p < count + TILE; p++)
                places[p] = p < count ? p / b->used_width * line + p % b->used_width * b->channels : 0;
            I out = n * b->out_height * b->out_width * b->filters;
            for (I first = 0; first < b->filters; first += WIDE) {
                I wide = least(vectors(b->filters - first) * LANES, WIDE);
                const float *panel = panels + first * depth;
                for (I p = 0; p < count; p += TILE)
                    tile_for(wide)(image, places + p, b->rows, row, line, panel, sums + p * wide);
                if (watch)
                    squares_of(watch, sums, wide, first, count);
                pool(b, sums, wide, first, from, to, bias, y + out, at + out);
            }
        }
}

#include "conv_winograd.h"
#include "conv_winograd_1d.h"

I conv_forward_floats(const Block *b) {
    return is_long(b) ? winograd_1d_floats(b) : tile_side(b) ? winograd_floats(b) : direct_floats(b);
}

/* Computes y from x with strides (image, channel, row, column), and in `at` the window place of each value; both have
 * the layout (image, row, column, filter). `padded` keeps the input for the gradients. */
void conv_forward(const Block *b, const float *x, const I *stride, const float *w, const float *bias, float *padded,
                  float *scratch, float *y, int32_t *at) {
    pad(b, x, stride, padded);
    if (is_long(b))
        winograd_1d(b, padded, w, bias, scratch, y, at);
    else
        (tile_side(b) ? winograd : direct)(b, padded, w, bias, scratch, y, at, 0);
}

#include "conv_gradients.h"
#include "conv_norm.h"
