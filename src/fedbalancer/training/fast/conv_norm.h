/* Convolution, batch norm with the statistics of the batch, max-pooling and ReLU in one layer. Included by conv.c.
 *
 * The norm is monotone, so pooling can come before it: a filter with a negative scale is negated together with its
 * scale. The mean of a convolution is known in advance from the sums of its patches. The squared distances from the
 * mean are therefore summed while the outputs are in the cache, and only pooled values are normalised.
 *
 * The gradient of the convolution's outputs c is the gradient that the pooling lets through plus, at every position,
 * a + b (c - mean), with a and b per filter. There are two backward algorithms:
 *
 * - Wide images use the adjoint of Winograd's algorithm (windows of 3 x 3) on the kept outputs, tile by tile.
 * - The first layer, with few inputs per window, needs no gradient of its input. The sum over all positions of
 *   (c - mean) times the patch is the filter times the covariance of the patches, so no output is kept. */
#include <math.h>

#define SMALL 64 /* maximum inputs in a window for the second algorithm */

/* Numbers that both passes share, kept by the caller. */
typedef struct {
    float *mean, *rest; /* of the filters after negation: mean and 1 / standard deviation */
    float *pooled;      /* like y, before the norm: distance from the mean */
    float *kept;        /* (tile, filter, 16): all outputs, for the first algorithm; may be 0 without a backward pass */
} Kept;

enum { NEITHER, BY_COVARIANCE, BY_TILES };

/* Chooses the backward algorithm of a block; `tile_side` decides which sizes are worthwhile. */
I conv_norm_way(const Block *b) {
    if (b->used_height != b->padded_height - b->rows + 1 || b->used_width != b->padded_width - b->columns + 1)
        return NEITHER; /* outputs outside all pooling windows are normalised as well */
    if (b->rows == 3 && tile_side(b))
        return BY_TILES;
    return b->rows * b->columns * b->channels <= SMALL && !tile_side(b) && !is_long(b) ? BY_COVARIANCE : NEITHER;
}

static I all_filters(const Block *b) { return vectors(b->filters) * LANES; }
static I depth_of(const Block *b) { return b->rows * b->columns * b->channels; }
static I fours(I side) { return (side + 3) / 4; }
static I tiles_in(const Block *b) { return b->images * fours(b->used_height) * fours(b->used_width); }
static double positions(const Block *b) { return (double)b->images * b->used_height * b->used_width; }

I conv_norm_kept_floats(const Block *b) { return conv_norm_way(b) == BY_TILES ? tiles_in(b) * all_filters(b) * 16 : 0; }

/* Sums all patches, as (row, column, channel); `line` has room for the channels. */
static void patch_sums(const Block *b, const float *padded, float *line, double *sums) {
    I c = b->channels, row = b->columns * c, used = b->used_width * c;
    memset(sums, 0, depth_of(b) * sizeof *sums);
    for (I n = 0; n < b->images; n++)
        for (I y = 0; y < b->padded_height; y++, padded += b->padded_width * c) {
            memset(line, 0, c * sizeof(float));
            for (I x = 0; x < used; x += c)
                for (I k = 0; k < c; k++)
                    line[k] += padded[x + k];
            for (I j = 0; j < row; j += c) {
                for (I i = 0; i < b->rows; i++)
                    for (I k = 0; y >= i && y - i < b->used_height && k < c; k++)
                        sums[i * row + j + k] += line[k];
                for (I k = 0; j + c < row && k < c; k++)
                    line[k] += padded[j + used + k] - padded[j + k];
            }
        }
}

/* Copies the filters in torch's layout, each negated if its scale is negative. */
static void signed_filters(const Block *b, const float *w, const float *scale, float *out) {
    for (I f = 0, depth = depth_of(b); f < b->filters; f++)
        for (I k = 0; k < depth; k++)
            out[f * depth + k] = scale[f] < 0 ? -w[f * depth + k] : w[f * depth + k];
}
static void means(const Block *b, const float *w, const double *sums, float *mean) {
    I window = b->rows * b->columns;
    for (I f = 0; f < b->filters; f++) {
        double sum = 0;
        for (I c = 0; c < b->channels; c++)
            for (I k = 0; k < window; k++)
                sum += sums[k * b->channels + c] * *w++;
        mean[f] = sum / positions(b);
    }
}

/* The beginning of both passes' scratch memory; `rest`, for the pass itself, is aligned for doubles. */
typedef struct {
    double *sums, *squares; /* sums of the patches; two numbers per filter */
    float *filters;         /* with their signs */
    float *negative, *line; /* the negated means; room for channels or twice the filters */
    float *rest;
} Common;
static I line_floats(const Block *b) { return b->channels > 2 * b->filters ? b->channels : 2 * b->filters; }
static I common_floats(const Block *b) {
    I doubles = depth_of(b) + 2 * all_filters(b);
    return 2 * doubles + b->filters * depth_of(b) + all_filters(b) + line_floats(b) + 3;
}
static Common common(const Block *b, float *scratch) {
    Common s;
    s.sums = (double *)(((uintptr_t)scratch + 7) & ~(uintptr_t)7);
    s.squares = s.sums + depth_of(b);
    s.filters = (float *)(s.squares + 2 * all_filters(b));
    s.negative = s.filters + b->filters * depth_of(b);
    s.line = s.negative + all_filters(b);
    s.rest = (float *)(((uintptr_t)(s.line + line_floats(b)) + 7) & ~(uintptr_t)7);
    return s;
}

I conv_norm_forward_floats(const Block *b) { return common_floats(b) + conv_forward_floats(b); }

/* Computes y = max(0, scale * pooled / deviation + shift), and sets the place to -1 where y is 0. */
static void normalise(const Block *b, const float *scale, const float *shift, Kept k, float *factor, float *y,
                      int32_t *at) {
    I filters = b->filters;
    for (I f = 0; f < filters; f++)
        factor[f] = fabsf(scale[f]) * k.rest[f];
    for (I p = 0; p < b->images * b->out_height * b->out_width; p++, y += filters, at += filters, k.pooled += filters)
        for (I f = 0; f < filters; f++) {
            float value = k.pooled[f] * factor[f] + shift[f];
            int off = b->relu && value <= 0;
            y[f] = off ? 0 : value;
            at[f] = off ? -1 : at[f];
        }
}

/* Like conv_forward, without a bias, which the norm would remove. */
void conv_norm_forward(const Block *b, const float *x, const I *stride, const float *w, const float *scale,
                       const float *shift, float eps, float *padded, float *scratch, const Kept *kept, float *y,
                       int32_t *at) {
    Common s = common(b, scratch);
    Block linear = *b;
    linear.relu = 0;
    Watch watch = {s.negative, s.squares, kept->kept};
    memset(s.squares, 0, all_filters(b) * sizeof *s.squares);
    memset(s.negative, 0, all_filters(b) * sizeof(float));
    pad(b, x, stride, padded);
    signed_filters(b, w, scale, s.filters);
    patch_sums(b, padded, s.line, s.sums);
    means(b, s.filters, s.sums, kept->mean);
    for (I f = 0; f < b->filters; f++)
        s.negative[f] = -kept->mean[f];
    (conv_norm_way(b) == BY_TILES ? winograd : direct)(&linear, padded, s.filters, s.negative, s.rest, kept->pooled, at,
                                                       &watch);
    for (I f = 0; f < b->filters; f++)
        kept->rest[f] = 1 / sqrt(s.squares[f] / positions(b) + eps);
    normalise(b, scale, shift, *kept, s.line, y, at);
}

/* Writes the gradient that the ReLU lets through, with filters last and padded. Also computes its sums and those of its
 * products with the normalised outputs, which are the gradients of shift and scale. */
static void through(const Block *b, const float *g, const I *stride, const int32_t *at, const Kept *k, float *out,
                    float *line, double *scale_grad, double *shift_grad) {
    I filters = b->filters, all = all_filters(b);
    const float *pooled = k->pooled;
    memset(scale_grad, 0, 2 * all * sizeof *scale_grad); /* shift_grad follows it */
    for (I n = 0; n < b->images; n++)
        for (I i = 0; i < b->out_height; i++) {
            float *one = line, *other = line + filters;
            memset(line, 0, 2 * filters * sizeof(float));
            for (I j = 0; j < b->out_width; j++, at += filters, pooled += filters, out += all) {
                const float *from = g + n * stride[0] + i * stride[2] + j * stride[3];
                if (stride[1] == 1)
                    for (I f = 0; f < filters; f++)
                        out[f] = at[f] < 0 ? 0 : from[f];
                else
                    for (I f = 0; f < filters; f++)
                        out[f] = at[f] < 0 ? 0 : from[f * stride[1]];
                for (I f = 0; f < filters; f++) {
                    one[f] += out[f] * pooled[f];
                    other[f] += out[f];
                }
                memset(out + filters, 0, (all - filters) * sizeof(float));
            }
            for (I f = 0; f < filters; f++) {
                scale_grad[f] += one[f];
                shift_grad[f] += other[f];
            }
        }
    for (I f = 0; f < filters; f++)
        scale_grad[f] *= k->rest[f];
}

#include "conv_norm_gradients.h"
