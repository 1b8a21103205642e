/* The backward algorithms of conv_norm.h, which includes this file. */

/* Coefficients per filter: the gradient of its output c is factor * (the gradient that the pooling lets through)
 * + level + slope * (c - mean). */
typedef struct {
    float *factor, *level, *slope, *negative; /* negative: the negated mean */
} Slopes;

static Slopes slopes_of(const Block *b, const float *scale, const Kept *k, const double *scale_grad,
                        const double *shift_grad, float *to) {
    I all = all_filters(b);
    Slopes s = {to, to + all, to + 2 * all, to + 3 * all};
    memset(to, 0, 4 * all * sizeof(float));
    for (I f = 0; f < b->filters; f++) {
        s.factor[f] = fabsf(scale[f]) * k->rest[f];
        s.level[f] = -s.factor[f] * shift_grad[f] / positions(b);
        s.slope[f] = -s.factor[f] * k->rest[f] * scale_grad[f] / positions(b);
        s.negative[f] = -k->mean[f];
    }
    return s;
}

#define FEW 5 /* rows of a covariance in registers */

/* Computes q[i][j] = sum over x of above[x * step + i] * below[x * step + j], for FEW values of i and a vector of j. */
static void products_of_rows(const float *above, const float *below, I step, I count, float *q, I pitch) {
    vf sum[FEW] = {{0}};
    for (I x = 0; x < count; x++, above += step, below += step) {
        vf other = LOAD(below);
#pragma GCC unroll 8
        for (int i = 0; i < FEW; i++)
            sum[i] += above[i] * other;
    }
    for (int i = 0; i < FEW; i++)
        STORE(q + i * pitch, sum[i]);
}

/* Sums, over all positions, the products of all pairs of inputs of a window. Two rows of an image at a distance `apart`
 * meet at several places of the window; their products are computed once. */
static void moments(const Block *b, const float *padded, double *to) {
    I row = b->columns * b->channels, line = b->padded_width * b->channels, depth = b->rows * row;
    I pitch = vectors(row) * LANES;
    float q[(SMALL + FEW) * (SMALL + LANES)];
    memset(to, 0, depth * depth * sizeof *to);
    for (I n = 0; n < b->images; n++)
        for (I y = 0; y < b->padded_height; y++, padded += line)
            for (I apart = 0; apart < least(b->rows, b->padded_height - y); apart++) {
                for (I i = 0; i < row; i += FEW)
                    for (I j = 0; j < row; j += LANES)
                        products_of_rows(padded + i, padded + apart * line + j, b->channels, b->used_width,
                                         q + i * pitch + j, pitch);
                for (I r = 0; r + apart < b->rows; r++) {
                    if (y < r || y - r >= b->used_height)
                        continue;
                    for (I i = 0; i < row; i++)
                        for (I j = 0; j < row; j++)
                            to[(r * row + i) * depth + (r + apart) * row + j] += q[i * pitch + j];
                }
            }
    for (I i = 0; i < depth; i++)
        for (I j = i / row * row + row; j < depth; j++)
            to[j * depth + i] = to[i * depth + j];
}

/* Computes the gradient of the filters in torch's layout: factor * filters (the part that the pooling lets through)
 * + level * (sum of patches) + slope * (covariance * filter). */
static void add_covariance(const Block *b, const float *w, const double *sums, const double *squares, Slopes s,
                           float *filters) {
    I depth = depth_of(b), window = b->rows * b->columns;
    for (I f = 0; f < b->filters; f++)
        for (I c = 0; c < b->channels; c++)
            for (I k = 0; k < window; k++) {
                I at = (f * b->channels + c) * window + k, here = k * b->channels + c;
                double sum = s.negative[f] * sums[here];
                for (I d = 0; d < b->channels; d++)
                    for (I l = 0; l < window; l++)
                        sum += squares[here * depth + l * b->channels + d] * w[(f * b->channels + d) * window + l];
                filters[at] = s.factor[f] * filters[at] + s.level[f] * sums[here] + s.slope[f] * sum;
            }
}

#define N 6

/* Like `times` and `twice`, with the matrix (columns x rows) transposed. */
INLINE void times_turned(int rows, int columns, const float *matrix, const vf *in, int in_step, vf *out,
                         int out_step) {
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++) {
        vf sum = (vf){0};
#pragma GCC unroll 8
        for (int j = 0; j < columns; j++)
            if (matrix[j * rows + i] != 0)
                sum += matrix[j * rows + i] * in[j * in_step];
        out[i * out_step] = sum;
    }
}
INLINE void twice_turned(int rows, int columns, const float *matrix, const vf *in, vf *out) {
    vf half[N * N];
#pragma GCC unroll 8
    for (int j = 0; j < columns; j++)
        times_turned(rows, columns, matrix, in + j, columns, half + j, columns);
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
        times_turned(rows, columns, matrix, half + i * columns, 1, out + i * rows, 1);
}

INLINE vi places_of(const int32_t *at, I count) {
    int32_t values[LANES] = {0};
    if (count >= LANES)
        return *(const vi *)at;
    memcpy(values, at, count * sizeof *at);
    return *(const vi *)values;
}

/* Transforms the gradient of a tile of outputs, at (y, x) of image n, to (36, tile, filter). g comes from `through`. */
static void tile_back(const Block *b, const float *g, const int32_t *at, const float *kept, Slopes s, I n, I y, I x,
                      float *out) {
    I all = all_filters(b), high = least(4, b->used_height - y), wide = least(4, b->used_width - x);
    for (I v = 0; v < all; v += LANES) {
        vf d[16], result[N * N], factor = LOAD(s.factor + v), level = LOAD(s.level + v), slope = LOAD(s.slope + v);
        vf away = LOAD(s.negative + v);
        for (I k = 0; k < 16; k++) {
            d[k] = (vf){0};
            if (k / 4 < high && k % 4 < wide)
                d[k] = level + slope * (LOAD(kept + v * 16 + k * LANES) + away);
        }
        for (I i = 0; i < high; i += b->pool_rows)
            for (I j = 0; j < wide; j += b->pool_columns) {
                I from = (n * b->out_height + (y + i) / b->pool_rows) * b->out_width + (x + j) / b->pool_columns;
                vi value = (vi)(factor * LOAD(g + from * all + v));
                vi where = places_of(at + from * b->filters + v, b->filters - v);
                for (int k = 0; k < b->pool_rows * b->pool_columns; k++)
                    d[(i + k / b->pool_columns) * 4 + j + k % b->pool_columns] += (vf)(value & (where == k));
            }
        twice_turned(N, 4, product_matrix_3, d, result);
        for (int k = 0; k < N * N; k++)
            STORE(out + k * TILES * all + v, result[k]);
    }
}

#define OF_PATCH (LANES < 8 ? 4 : 8) /* channels in registers */

/* Adds the sum over the tiles of patch times gradient to (channel, filter), for one of the 36 elements. */
INLINE void weigh_some(int V, const float *patch, I channels, const float *g, I all, I tiles, float *to) {
    vf sum[OF_PATCH][2];
#pragma GCC unroll 8
    for (int c = 0; c < OF_PATCH; c++)
        for (int v = 0; v < V; v++)
            sum[c][v] = LOAD(to + c * all + v * LANES);
    for (I t = 0; t < tiles; t++, patch += channels, g += all) {
        vf one = LOAD(g), two = V > 1 ? LOAD(g + LANES) : one;
#pragma GCC unroll 8
        for (int c = 0; c < OF_PATCH; c++) {
            sum[c][0] += patch[c] * one;
            if (V > 1)
                sum[c][1] += patch[c] * two;
        }
    }
#pragma GCC unroll 8
    for (int c = 0; c < OF_PATCH; c++)
        for (int v = 0; v < V; v++)
            STORE(to + c * all + v * LANES, sum[c][v]);
}
static void weigh_tiles(I channels, I all, const float *patches, const float *g, I tiles, float *to) {
    for (I k = 0; k < N * N; k++, patches += TILES * channels, g += TILES * all, to += channels * all)
        for (I c = 0; c < channels; c += OF_PATCH)
            for (I f = 0; f < all; f += WIDE)
                if (f + WIDE <= all)
                    weigh_some(2, patches + c, channels, g + f, all, tiles, to + c * all + f);
                else
                    weigh_some(1, patches + c, channels, g + f, all, tiles, to + c * all + f);
}

/* Adds a panel of channels (36, tile, channel) to the patch at (y, x) of the image. */
static void patch_back(const Block *b, const float *from, I wide, I y, I x, float *image) {
    I line = b->padded_width * b->channels;
    for (I v = 0; v < wide; v += LANES) {
        vf in[N * N], result[N * N];
        for (int k = 0; k < N * N; k++)
            in[k] = LOAD(from + k * TILES * wide + v);
        twice_turned(N, N, patch_matrix, in, result);
        for (I i = 0; i < least(N, b->padded_height - y); i++)
            for (I j = 0; j < least(N, b->padded_width - x); j++) {
                float *to = image + (y + i) * line + (x + j) * b->channels + v;
                STORE(to, LOAD(to) + result[i * N + j]);
            }
    }
}

/* Packs filters in torch's layout into a panel of channels (row, column, filter, channel). */
static void pack_turned(const Block *b, const float *w, I first, I wide, float *out) {
    I all = all_filters(b);
    memset(out, 0, 9 * all * wide * sizeof(float));
    for (I f = 0; f < b->filters; f++)
        for (I c = 0; c < wide; c++)
            for (I k = 0; k < 9; k++)
                out[(k * all + f) * wide + c] = w[(f * b->channels + first + c) * 9 + k];
}

/* The memory of the algorithm by tiles. */
typedef struct {
    float *turned, *gradient, *patches, *tile_grads, *patch_grads, *zeros, *panel;
} Tiled;
static I carve_tiled(const Block *b, float *from, Tiled *t) {
    I channels = b->channels, all = all_filters(b);
    t->turned = from;                                   /* (panel, 36, filter, channel) */
    t->gradient = t->turned + N * N * channels * all;   /* (36, channel, filter) */
    t->patches = t->gradient + N * N * channels * all;  /* (36, tile, channel) */
    t->tile_grads = t->patches + N * N * TILES * channels; /* (36, tile, filter) */
    t->patch_grads = t->tile_grads + N * N * TILES * all;  /* (36, tile, channel of a panel) */
    t->zeros = t->patch_grads + N * N * TILES * WIDE;
    t->panel = t->zeros + channels; /* (9, filter, channel of a panel), then (9, channel, filter) */
    return t->panel + 9 * channels * all - from;
}

/* Computes the gradient of the input from that of a few tiles. */
static void inputs_back(const Block *b, Tiled m, const I (*at)[3], I tiles, float *input) {
    I all = all_filters(b), size = b->padded_height * b->padded_width * b->channels;
    int32_t places[TILES];
    for (int t = 0; t < TILES; t++)
        places[t] = t * all;
    for (I first = 0; first < b->channels; first += WIDE) {
        I wide = least(b->channels - first, WIDE);
        for (I k = 0; k < N * N; k++)
            for (I t = 0; t < tiles; t += TILE)
                tile_for(wide)(m.tile_grads + k * TILES * all, places + t, 1, all, 0,
                               m.turned + (first * N * N + k * wide) * all, m.patch_grads + (k * TILES + t) * wide);
        for (I t = 0; t < tiles; t++)
            patch_back(b, m.patch_grads + t * wide, wide, at[t][1] * 4, at[t][2] * 4, input + at[t][0] * size + first);
    }
}

/* Computes the gradients of the filters in torch's layout, and of the padded input if `input` is given. */
static void by_tiles(const Block *b, const float *w, const float *g, const int32_t *at, const float *padded,
                     const float *kept, Slopes s, float *scratch, float *filters, float *input) {
    I all = all_filters(b), down = fours(b->used_height), across = fours(b->used_width), count = tiles_in(b);
    I channels = b->channels, size = b->padded_height * b->padded_width * channels;
    Tiled m;
    memset(scratch, 0, carve_tiled(b, scratch, &m) * sizeof(float));
    for (I first = 0; input && first < channels; first += WIDE) {
        I wide = least(channels - first, WIDE);
        pack_turned(b, w, first, wide, m.panel);
        filters_over_3(all, m.panel, wide, m.turned + first * N * N * all);
    }
    for (I tile = 0; tile < count; tile += TILES) {
        I tiles = least(TILES, count - tile), where[TILES][3];
        for (I t = 0; t < tiles; t++) {
            I n = where[t][0] = (tile + t) / (down * across), i = where[t][1] = (tile + t) / across % down;
            I j = where[t][2] = (tile + t) % across;
            patch_over(b, padded + n * size, i * 4, j * 4, m.zeros, m.patches + t * channels);
            tile_back(b, g, at, kept + (tile + t) * all * 16, s, n, i * 4, j * 4, m.tile_grads + t * all);
        }
        weigh_tiles(channels, all, m.patches, m.tile_grads, tiles, m.gradient);
        if (input)
            inputs_back(b, m, (const I(*)[3])where, tiles, input);
    }
    for (I from = 0; from < channels * all; from += LANES) {
        vf in[N * N], result[9];
        for (int k = 0; k < N * N; k++)
            in[k] = LOAD(m.gradient + k * channels * all + from);
        twice_turned(3, N, filter_matrix_3, in, result);
        for (int k = 0; k < 9; k++)
            STORE(m.panel + k * channels * all + from, result[k]);
    }
    for (I f = 0; f < b->filters; f++)
        for (I c = 0; c < channels; c++)
            for (I k = 0; k < 9; k++)
                *filters++ = m.panel[(k * channels + c) * all + f];
}
#undef N

I conv_norm_backward_floats(const Block *b) {
    I all = all_filters(b), depth = depth_of(b), windows = b->images * b->out_height * b->out_width;
    float start;
    Tiled m;
    I own = conv_norm_way(b) == BY_TILES ? carve_tiled(b, &start, &m) : 2 * depth * depth + conv_backward_floats(b);
    return common_floats(b) + 4 * all + windows * all + own;
}

/* Like conv_backward: the gradients of filters, scale and shift, and of the padded input if `input` is given, which
 * only the algorithm by tiles supports. */
void conv_norm_backward(const Block *b, const float *g, const I *stride, const int32_t *at, float *padded,
                        const float *w, const float *scale, const Kept *kept, float *scratch, float *filters,
                        float *scale_grad, float *shift_grad, float *input) {
    I all = all_filters(b), depth = depth_of(b);
    Common c = common(b, scratch);
    double *sums = c.squares, *shifts = sums + all, *squares = (double *)c.rest; /* aligned for doubles */
    float *own = c.rest + (conv_norm_way(b) == BY_TILES ? 0 : 2 * depth * depth), *open = own + 4 * all;
    float *scratch_of_way = open + b->images * b->out_height * b->out_width * all;
    signed_filters(b, w, scale, c.filters);
    through(b, g, stride, at, kept, open, c.line, sums, shifts);
    Slopes s = slopes_of(b, scale, kept, sums, shifts, own);
    if (input)
        memset(input, 0, conv_padded_floats(b) * sizeof(float));
    if (conv_norm_way(b) == BY_TILES)
        by_tiles(b, c.filters, open, at, padded, kept->kept, s, scratch_of_way, filters, input);
    else {
        conv_backward(b, g, stride, at, padded, w, scratch_of_way, filters, shift_grad, 0);
        patch_sums(b, padded, c.line, c.sums);
        moments(b, padded, squares);
        add_covariance(b, c.filters, c.sums, squares, s, filters);
    }
    for (I f = 0; f < b->filters; f++) {
        scale_grad[f] = scale[f] < 0 ? -sums[f] : sums[f];
        shift_grad[f] = shifts[f];
        for (I k = 0; scale[f] < 0 && k < depth; k++)
            filters[f * depth + k] = -filters[f * depth + k];
    }
}
