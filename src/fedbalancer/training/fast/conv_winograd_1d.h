/* Long one-dimensional windows by Winograd's algorithm: the window is cut into groups of 4, and 4 outputs take 7
 * products per channel and group instead of 16. Tiles are 4 steps apart, like groups, so the transformed patch of a
 * tile and group is also that of the next tile and the previous group. The patches of all groups of a tile are
 * contiguous, and the sum over groups and channels is one matrix product for each of the 7 elements. The points are 0,
 * 1, -1, 1/2, -1/2, 4 and infinity; errors are about three times those of a plain sum. Included by conv.c. */

#define N 7
#define SIDE 4
#define NEAR 96 /* approximate number of tiles processed together */

/* One row per line. */
static const float patch_matrix_1d[N * N] = {
    -0.25f, 0.0625f, 1.25f,   -0.3125f, -1,       0.25f, 0,     //
    0,      0.25f,   0.1875f, -1.0625f, -0.75f,   0.25f, 0,     //
    0,      -0.25f,  0.3125f, 0.9375f,  -1.25f,   0.25f, 0,     //
    0,      0.5f,    0.875f,  -0.75f,   -0.875f,  0.25f, 0,     //
    0,      -0.5f,   1.125f,  0.25f,    -1.125f,  0.25f, 0,     //
    0,      0.25f,   0,       -1.25f,   0,        1,     0,     //
    0,      -0.25f,  0.0625f, 1.25f,    -0.3125f, -1,    0.25f, //
};
static const float filter_matrix_1d[N * SIDE] = {
    -4,        0,          0,          0,          //
    -8 / 9.f,  -8 / 9.f,   -8 / 9.f,   -8 / 9.f,   //
    -8 / 15.f, 8 / 15.f,   -8 / 15.f,  8 / 15.f,   //
    64 / 21.f, 32 / 21.f,  16 / 21.f,  8 / 21.f,   //
    64 / 27.f, -32 / 27.f, 16 / 27.f,  -8 / 27.f,  //
    1 / 945.f, 4 / 945.f,  16 / 945.f, 64 / 945.f, //
    0,         0,          0,          4,          //
};
static const float product_matrix_1d[SIDE * N] = {
    1, 1, 1,  1,      1,       1,  0, //
    0, 1, -1, 0.5f,   -0.5f,   4,  0, //
    0, 1, 1,  0.25f,  0.25f,   16, 0, //
    0, 1, -1, 0.125f, -0.125f, 64, 1, //
};

static I groups(const Block *b) { return (b->columns + SIDE - 1) / SIDE; }
static I tiles_across(const Block *b) { return (b->used_width + SIDE - 1) / SIDE; }
static I images_near(const Block *b) { return least(b->images, (NEAR + tiles_across(b) - 1) / tiles_across(b)); }
/* Patches of an image, shared by tiles and groups; floats between two of the 7 elements. */
static I patches_across(const Block *b) { return tiles_across(b) + groups(b) - 1; }
static I plane(const Block *b) { return images_near(b) * patches_across(b) * b->channels + LANES; }

/* Whether this algorithm applies and is worthwhile. */
static int is_long(const Block *b) {
    if (b->rows != 1 || b->padded_height != 1 || b->filters < 16 || SIDE % b->pool_columns)
        return 0;
    return 3 * N * groups(b) * tiles_across(b) < 2 * b->columns * b->used_width;
}
static I winograd_1d_floats(const Block *b) {
    I filters = vectors(b->filters) * LANES, tiles = images_near(b) * tiles_across(b) + TILE;
    return filters * b->channels * (b->columns + N * groups(b)) + N * plane(b) + N * tiles * WIDE + tiles +
           (SIDE * patches_across(b) + SIDE) * b->channels + LANES;
}

/* Transforms a panel (step, channel, filter) to (7, group, channel, filter). */
static void filters_over_1d(const Block *b, const float *panel, I wide, float *out) {
    I step = b->channels * wide;
    for (I g = 0; g < groups(b); g++)
        for (I at = 0; at < step; at += LANES) {
            vf in[SIDE], result[N];
            for (I k = 0; k < SIDE; k++)
                in[k] = g * SIDE + k < b->columns ? LOAD(panel + (g * SIDE + k) * step + at) : (vf){0};
            times(N, SIDE, filter_matrix_1d, in, 1, result, 1);
            for (int k = 0; k < N; k++)
                STORE(out + (k * groups(b) + g) * step + at, result[k]);
        }
}

/* Transforms an image to (7, patch, channel). Values written beyond the channels are overwritten by the next patch. */
static void patches_over_1d(const Block *b, const float *image, float *line, float *out) {
    I c = b->channels, all = SIDE * patches_across(b) + SIDE, have = least(all, b->padded_width);
    memcpy(line, image, have * c * sizeof(float));
    memset(line + have * c, 0, ((all - have) * c + LANES) * sizeof(float));
    for (I s = 0; s < patches_across(b); s++)
        for (I at = 0; at < c; at += LANES) {
            vf in[N], result[N];
            for (int k = 0; k < N; k++)
                in[k] = LOAD(line + (s * SIDE + k) * c + at);
            times(N, N, patch_matrix_1d, in, 1, result, 1);
            for (int k = 0; k < N; k++)
                STORE(out + k * plane(b) + s * c + at, result[k]);
        }
}

/* Transforms the products (7, tile, filter) of all tiles of an image to outputs, and pools them. */
static void products_over_1d(const Block *b, const float *products, I pitch, I wide, I first, const float *bias,
                             float *out, int32_t *at) {
    I windows = SIDE / b->pool_columns;
    for (I v = 0; v < wide; v += LANES) {
        I filters = least(b->filters - first - v, LANES);
        vf shift = some_of(bias + first + v, filters);
        for (I t = 0; t < tiles_across(b); t++) {
            vf in[N], result[SIDE];
            for (int k = 0; k < N; k++)
                in[k] = LOAD(products + k * pitch + t * wide + v);
            times(SIDE, N, product_matrix_1d, in, 1, result, 1);
            for (I j = 0, left = b->used_width - t * SIDE; j < windows && j * b->pool_columns < left; j++) {
                I to = (t * windows + j) * b->filters + first + v;
                pool_window(b, (float *)(result + j * b->pool_columns), LANES, 0, 1,
                            least(b->pool_columns, left - j * b->pool_columns), shift, filters, out + to, at + to);
            }
        }
    }
}

static void winograd_1d(const Block *b, const float *padded, const float *w, const float *bias, float *scratch,
                        float *y, int32_t *at) {
    I c = b->channels, all = vectors(b->filters) * LANES, deep = groups(b) * c, across = tiles_across(b);
    I near = images_near(b), pitch = near * across + TILE;
    float *panels = scratch, *filters = panels + b->columns * c * all, *patches = filters + N * deep * all;
    float *products = patches + N * plane(b), *line = products + N * pitch * WIDE;
    int32_t *places = (int32_t *)(line + (SIDE * patches_across(b) + SIDE) * c + LANES);
    pack_panels(b, w, panels);
    for (I first = 0; first < b->filters; first += WIDE)
        filters_over_1d(b, panels + first * b->columns * c, least(all - first, WIDE), filters + first * N * deep);
    for (I from = 0; from < b->images; from += near) {
        I some = least(near, b->images - from), tiles = some * across;
        for (I n = 0; n < some; n++)
            patches_over_1d(b, padded + (from + n) * b->padded_width * c, line, patches + n * patches_across(b) * c);
        for (I t = 0; t < tiles + TILE; t++)
            places[t] = t < tiles ? (t / across * patches_across(b) + t % across) * c : 0;
        for (I first = 0; first < b->filters; first += WIDE) {
            I wide = least(all - first, WIDE);
            for (I k = 0; k < N; k++)
                for (I t = 0; t < tiles; t += TILE)
                    tile_for(wide)(patches + k * plane(b), places + t, 1, deep, 0,
                                   filters + (first * N + k * wide) * deep, products + (k * pitch + t) * wide);
            for (I n = 0; n < some; n++) {
                I out = (from + n) * b->out_width * b->filters;
                products_over_1d(b, products + n * across * wide, pitch * wide, wide, first, bias, y + out, at + out);
            }
        }
    }
}
#undef N
#undef SIDE
