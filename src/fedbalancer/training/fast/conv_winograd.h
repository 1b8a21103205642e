/* Square windows of 3 or 5 by Winograd's algorithm: a tile of outputs takes 36 products per channel instead of 100
 * (2 x 2 outputs, 5 x 5 window) or 144 (4 x 4 outputs, 3 x 3 window). Filters and patches of 6 x 6 are transformed to a
 * basis in which a convolution is an elementwise product; over channels and filters this gives 36 matrix products. The
 * points are 0, 1, -1, 1/2, -2 and infinity, which have the least rounding among those with small fractions: errors are
 * about four times those of a plain sum (A. Lavin and S. Gray, 2016; B. Barabasz et al., 2020). Included by conv.c. */

#define N 6
#define TILES 12 /* tiles processed together, so that their intermediate results stay in the cache */

/* One row per line. */
static const float patch_matrix[N * N] = {
    0.5f, -0.75f, -1,     0.75f, 0.5f,  0,    //
    0,    -0.5f,  0.25f,  1.25f, 0.5f,  0,    //
    0,    0.5f,   -1.25f, 0.25f, 0.5f,  0,    //
    0,    -1,     -0.5f,  1,     0.5f,  0,    //
    0,    0.5f,   -1,     -0.5f, 1,     0,    //
    0,    0.5f,   -0.75f, -1,    0.75f, 0.5f, //
};
static const float filter_matrix_5[N * 5] = {
    2,          0,          0,         0,         0,         //
    2 / 3.f,    2 / 3.f,    2 / 3.f,   2 / 3.f,   2 / 3.f,   //
    -2 / 3.f,   2 / 3.f,    -2 / 3.f,  2 / 3.f,   -2 / 3.f,  //
    -32 / 15.f, -16 / 15.f, -8 / 15.f, -4 / 15.f, -2 / 15.f, //
    1 / 15.f,   -2 / 15.f,  4 / 15.f,  -8 / 15.f, 16 / 15.f, //
    0,          0,          0,         0,         2,         //
};
static const float filter_matrix_3[N * 3] = {
    2,          0,          0,         //
    2 / 3.f,    2 / 3.f,    2 / 3.f,   //
    -2 / 3.f,   2 / 3.f,    -2 / 3.f,  //
    -32 / 15.f, -16 / 15.f, -8 / 15.f, //
    1 / 15.f,   -2 / 15.f,  4 / 15.f,  //
    0,          0,          2,         //
};
static const float product_matrix_5[2 * N] = {
    1, 1, 1,  1,    1,  0, //
    0, 1, -1, 0.5f, -2, 1, //
};
static const float product_matrix_3[4 * N] = {
    1, 1, 1,  1,      1,  0, //
    0, 1, -1, 0.5f,   -2, 0, //
    0, 1, 1,  0.25f,  4,  0, //
    0, 1, -1, 0.125f, -8, 1, //
};

/* Computes out = matrix times in, without the products with 0, which are known at compile time. */
INLINE void times(int rows, int columns, const float *matrix, const vf *in, int in_step, vf *out, int out_step) {
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++) {
        vf sum = (vf){0};
#pragma GCC unroll 8
        for (int j = 0; j < columns; j++)
            if (matrix[i * columns + j] != 0)
                sum += matrix[i * columns + j] * in[j * in_step];
        out[i * out_step] = sum;
    }
}
/* Computes matrix times in (columns x columns) times the transposed matrix: rows x rows. */
INLINE void twice(int rows, int columns, const float *matrix, const vf *in, vf *out) {
    vf half[N * N];
#pragma GCC unroll 8
    for (int j = 0; j < columns; j++)
        times(rows, columns, matrix, in + j, columns, half + j, columns);
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
        times(rows, columns, matrix, half + i * columns, 1, out + i * rows, 1);
}

/* Transforms a panel (row, column, channel, filter) to (36, channel, filter). */
INLINE void filters_over(int window, const float *matrix, I channels, const float *panel, I wide, float *out) {
    for (I at = 0; at < channels * wide; at += LANES) {
        vf in[N * N], result[N * N];
        for (int k = 0; k < window * window; k++)
            in[k] = LOAD(panel + k * channels * wide + at);
        twice(N, window, matrix, in, result);
        for (int k = 0; k < N * N; k++)
            STORE(out + k * channels * wide + at, result[k]);
    }
}

/* Transforms the 6 x 6 patch at (y, x) to (36, tile, channel); positions outside the image are 0. */
static void patch_over(const Block *b, const float *image, I y, I x, const float *zeros, float *out) {
    I line = b->padded_width * b->channels;
    const float *from[N * N];
    for (I i = 0; i < N; i++)
        for (I j = 0; j < N; j++) {
            int inside = y + i < b->padded_height && x + j < b->padded_width;
            from[i * N + j] = inside ? image + (y + i) * line + (x + j) * b->channels : zeros;
        }
    for (I c = 0; c < b->channels; c += LANES) {
        vf in[N * N], result[N * N];
        for (int k = 0; k < N * N; k++)
            in[k] = LOAD(from[k] + c);
        twice(N, N, patch_matrix, in, result);
        for (int k = 0; k < N * N; k++)
            STORE(out + k * TILES * b->channels + c, result[k]);
    }
}

/* Records the 4 x 4 outputs of the tile at (y, x), for the vector of filters that begins at `first`. */
INLINE void watch_tile(const Block *b, const vf *result, I y, I x, I first, I tile, const Watch *watch) {
    vf away = LOAD(watch->negative + first), sum = {0};
    for (I i = 0; i < least(4, b->used_height - y); i++)
        for (I j = 0; j < least(4, b->used_width - x); j++) {
            vf far = result[i * 4 + j] + away;
            sum += far * far;
        }
    add_up_lanes(watch->squares + first, sum);
    float *to = watch->kept + (tile * vectors(b->filters) * LANES + first) * 16;
    for (int k = 0; watch->kept && k < 16; k++)
        STORE(to + k * LANES, result[k]);
}

/* Transforms the products (36, tile, filter) of the tile at (y, x) to outputs, and pools them. */
INLINE void products_over(int side, const float *matrix, const Block *b, const float *products, I wide, I y, I x,
                          I first, const float *bias, float *out, int32_t *at, I tile, const Watch *watch) {
    for (I v = 0; v < wide; v += LANES) {
        I filters = least(b->filters - first - v, LANES);
        vf in[N * N], result[N * N], shift = some_of(bias + first + v, filters);
        for (int k = 0; k < N * N; k++)
            in[k] = LOAD(products + k * TILES * wide + v);
        twice(side, N, matrix, in, result);
        if (watch && side == 4)
            watch_tile(b, result, y, x, first + v, tile, watch);
        for (I i = 0; i < least(side, b->used_height - y); i += b->pool_rows)
            for (I j = 0; j < least(side, b->used_width - x); j += b->pool_columns) {
                I rows = least(b->pool_rows, b->used_height - y - i);
                I columns = least(b->pool_columns, b->used_width - x - j);
                I to = ((y + i) / b->pool_rows * b->out_width + (x + j) / b->pool_columns) * b->filters + first + v;
                pool_window(b, (float *)(result + i * side + j), LANES, side * LANES, rows, columns, shift, filters,
                            out + to, at + to);
            }
    }
}

/* Computes one panel's products and outputs for `tiles` tiles, beginning with number `tile`. */
INLINE void tiles_of(int side, const float *matrix, const Block *b, const float *patches, const float *panel, I wide,
                     float *products, I tile, I tiles, I first, const float *bias, float *y, int32_t *at,
                     const Watch *watch) {
    I down = (b->used_height + side - 1) / side, across = (b->used_width + side - 1) / side;
    int32_t places[TILES];
    for (int t = 0; t < TILES; t++)
        places[t] = t * b->channels;
    for (I k = 0; k < N * N; k++)
        for (I t = 0; t < tiles; t += TILE)
            tile_for(wide)(patches + k * TILES * b->channels, places + t, 1, b->channels, 0,
                           panel + k * b->channels * wide, products + (k * TILES + t) * wide);
    for (I t = 0; t < tiles; t++) {
        I n = (tile + t) / (down * across), i = (tile + t) / across % down, j = (tile + t) % across;
        I out = n * b->out_height * b->out_width * b->filters;
        products_over(side, matrix, b, products + t * wide, wide, i * side, j * side, first, bias, y + out, at + out,
                      tile + t, watch);
    }
}
static void filters_over_5(I channels, const float *panel, I wide, float *out) {
    filters_over(5, filter_matrix_5, channels, panel, wide, out);
}
static void filters_over_3(I channels, const float *panel, I wide, float *out) {
    filters_over(3, filter_matrix_3, channels, panel, wide, out);
}
static void tiles_of_5(const Block *b, const float *patches, const float *panel, I wide, float *products, I tile,
                       I tiles, I first, const float *bias, float *y, int32_t *at, const Watch *watch) {
    tiles_of(2, product_matrix_5, b, patches, panel, wide, products, tile, tiles, first, bias, y, at, watch);
}
static void tiles_of_3(const Block *b, const float *patches, const float *panel, I wide, float *products, I tile,
                       I tiles, I first, const float *bias, float *y, int32_t *at, const Watch *watch) {
    tiles_of(4, product_matrix_3, b, patches, panel, wide, products, tile, tiles, first, bias, y, at, watch);
}

/* Outputs along a side of a tile; 0 if this algorithm does not apply or is not worthwhile. */
static I tile_side(const Block *b) {
    I window = b->rows, side = N + 1 - window;
    if (b->columns != window || (window != 3 && window != 5) || side % b->pool_rows || side % b->pool_columns)
        return 0;
    if (b->channels % LANES || b->channels < 16 || b->filters < 16)
        return 0;
    I tiles = (b->used_height + side - 1) / side * ((b->used_width + side - 1) / side);
    return 3 * N * N * tiles < 2 * window * window * b->used_height * b->used_width ? side : 0;
}
static I winograd_floats(const Block *b) {
    I filters = vectors(b->filters) * LANES;
    return filters * b->channels * (N * N + b->rows * b->rows) + N * N * TILES * (b->channels + WIDE) + b->channels;
}

static void winograd(const Block *b, const float *padded, const float *w, const float *bias, float *scratch, float *y,
                     int32_t *at, const Watch *watch) {
    I channels = b->channels, all = vectors(b->filters) * LANES, window = b->rows * b->rows, side = tile_side(b);
    I down = (b->used_height + side - 1) / side, across = (b->used_width + side - 1) / side;
    float *panels = scratch, *filters = panels + window * channels * all, *patches = filters + N * N * channels * all;
    float *products = patches + N * N * TILES * channels, *zeros = products + N * N * TILES * WIDE;
    memset(patches, 0, N * N * TILES * channels * sizeof(float)); /* an incomplete last tile reads the rest */
    memset(zeros, 0, channels * sizeof(float));
    pack_panels(b, w, panels);
    for (I first = 0; first < b->filters; first += WIDE)
        (b->rows == 5 ? filters_over_5 : filters_over_3)(channels, panels + first * window * channels,
                                                         least(all - first, WIDE), filters + first * N * N * channels);
    for (I tile = 0, count = b->images * down * across; tile < count; tile += TILES) {
        I tiles = least(TILES, count - tile);
        for (I t = 0; t < tiles; t++) {
            I n = (tile + t) / (down * across), i = (tile + t) / across % down, j = (tile + t) % across;
            const float *image = padded + n * b->padded_height * b->padded_width * channels;
            patch_over(b, image, i * side, j * side, zeros, patches + t * channels);
        }
        for (I first = 0; first < b->filters; first += WIDE)
            (b->rows == 5 ? tiles_of_5 : tiles_of_3)(b, patches, filters + first * N * N * channels,
                                                     least(all - first, WIDE), products, tile, tiles, first, bias, y,
                                                     at, watch);
    }
}
#undef N
