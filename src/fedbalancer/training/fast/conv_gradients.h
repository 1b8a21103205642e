/* The gradients of conv.c, which includes this file. */

#define MOST 12 /* registers that hold a piece of a gradient */

typedef struct {
    int32_t at; /* offset of a patch in the image, or of a filter */
    float value;
} Entry;
typedef struct {
    int32_t at, first, count; /* offset of the sum (a filter or a position in the image), and its entries */
} Segment;

static I row_lanes(const Block *b) { return vectors(b->columns * b->channels) * LANES; }
static I filter_lanes(const Block *b) { return b->rows * row_lanes(b); }

/* Adds the sum of value * from[at] to a piece of a gradient, R rows of J vectors, in registers. */
INLINE void piece(int R, int J, float *to, I to_line, const float *from, I from_line, const Entry *entry, I count) {
    vf sum[MOST];
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 16
        for (int j = 0; j < J; j++)
            sum[r * J + j] = LOAD(to + r * to_line + j * LANES);
    for (I i = 0; i < count; i++) {
        const float *source = from + entry[i].at;
        float value = entry[i].value;
#pragma GCC unroll 16
        for (int r = 0; r < R; r++)
#pragma GCC unroll 16
            for (int j = 0; j < J; j++)
                sum[r * J + j] += value * LOAD(source + r * from_line + j * LANES);
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 16
        for (int j = 0; j < J; j++)
            STORE(to + r * to_line + j * LANES, sum[r * J + j]);
}

typedef void Piece(float *to, I to_line, const float *from, I from_line, const Entry *entry, I count);
// clang-format off
#define PIECE(R, J)                                                                                          \
    static void piece_##R##_##J(float *to, I to_line, const float *from, I from_line, const Entry *e, I n) { \
        piece(R, J, to, to_line, from, from_line, e, n);                                                     \
    }
PIECE(1, 1) PIECE(1, 2) PIECE(1, 3) PIECE(1, 4) PIECE(1, 5) PIECE(1, 6) PIECE(1, 7) PIECE(1, 8) PIECE(1, 9)
PIECE(1, 10) PIECE(1, 11) PIECE(1, 12) PIECE(2, 1) PIECE(3, 1) PIECE(4, 1) PIECE(5, 1) PIECE(6, 1) PIECE(7, 1)
PIECE(8, 1) PIECE(2, 2) PIECE(3, 2) PIECE(4, 2) PIECE(5, 2) PIECE(6, 2) PIECE(2, 3) PIECE(3, 3) PIECE(4, 3)
static Piece *const pieces_of_one_row[] = {
    0,         piece_1_1, piece_1_2, piece_1_3,  piece_1_4,  piece_1_5,  piece_1_6,
    piece_1_7, piece_1_8, piece_1_9, piece_1_10, piece_1_11, piece_1_12,
};
// clang-format on
static Piece *const pieces_of_rows[][9] = {
    {0},
    {0, piece_1_1, piece_2_1, piece_3_1, piece_4_1, piece_5_1, piece_6_1, piece_7_1, piece_8_1},
    {0, piece_1_2, piece_2_2, piece_3_2, piece_4_2, piece_5_2, piece_6_2},
    {0, piece_1_3, piece_2_3, piece_3_3, piece_4_3},
};
static const I rows_at_most[] = {0, 8, 6, 4};

INLINE Piece *piece_for(I rows, I vectors) {
    return rows == 1 ? pieces_of_one_row[vectors] : pieces_of_rows[vectors][rows];
}

/* Packs filters in torch's layout into (filter, row, column and channel), with rows padded with zeros. */
static void pack_rows(const Block *b, const float *w, float *out) {
    I wide = row_lanes(b), all = filter_lanes(b);
    memset(out, 0, b->filters * all * sizeof(float));
    for (I f = 0; f < b->filters; f++)
        for (I c = 0; c < b->channels; c++)
            for (I i = 0; i < b->rows; i++)
                for (I j = 0; j < b->columns; j++)
                    out[f * all + i * wide + j * b->channels + c] = *w++;
}
static void unpack_rows(const Block *b, const float *from, float *w) {
    I wide = row_lanes(b), all = filter_lanes(b);
    for (I f = 0; f < b->filters; f++)
        for (I c = 0; c < b->channels; c++)
            for (I i = 0; i < b->rows; i++)
                for (I j = 0; j < b->columns; j++)
                    *w++ = from[f * all + i * wide + j * b->channels + c];
}

/* Working memory of the gradients, carved from one block. */
typedef struct {
    float *filters, *gradient; /* (filter, row, column and channel) */
    Entry *entries, *buckets;
    int32_t *counts, *corners, *shifts; /* corners: start of each window; shifts[place + 1]: offset of a place in it */
    Segment *segments;
} Scratch;
static I carve(const Block *b, float *from, Scratch *s) {
    I windows = b->out_height * b->out_width, inside = b->pool_rows * b->pool_columns, all = filter_lanes(b);
    I segments = windows * least(inside, b->filters);
    s->filters = from;
    s->gradient = s->filters + b->filters * all;
    s->entries = (Entry *)(s->gradient + b->filters * all);
    s->buckets = s->entries + windows * b->filters;
    s->counts = (int32_t *)(s->buckets + (inside + 1) * b->filters);
    s->corners = s->counts + inside + 1;
    s->shifts = s->corners + windows;
    s->segments = (Segment *)(s->shifts + inside + 1);
    return (float *)(s->segments + (segments > b->filters ? segments : b->filters)) - from;
}
I conv_backward_floats(const Block *b) {
    float start;
    Scratch s;
    return carve(b, &start, &s);
}

static void find_places(const Block *b, Scratch s) {
    I line = b->padded_width * b->channels, k = 0;
    for (I i = 0; i < b->out_height; i++)
        for (I j = 0; j < b->out_width; j++)
            s.corners[k++] = i * b->pool_rows * line + j * b->pool_columns * b->channels;
    k = s.shifts[0] = 0;
    for (I i = 0; i < b->pool_rows; i++)
        for (I j = 0; j < b->pool_columns; j++)
            s.shifts[++k] = i * line + j * b->channels;
}

static float sum_of(const Entry *entry, I count) {
    float sums[4] = {0}; /* four, because an addition waits for the previous one */
    I i = 0;
    for (; i + 4 <= count; i += 4)
        for (int k = 0; k < 4; k++)
            sums[k] += entry[i + k].value;
    for (; i < count; i++)
        sums[0] += entry[i].value;
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

/* Makes one segment per filter, with the patches of this image that it selected, and adds up the gradient of the bias.
 * There are no branches: if the ReLU is off, the entry is written and then overwritten by the next. */
static I by_filter(const Block *b, const float *g, const I *stride, const int32_t *at, Scratch s, float *bias) {
    I height = b->out_height, width = b->out_width, filters = b->filters, down = stride[2], right = stride[3];
    for (I f = 0; f < filters; f++) {
        Entry *first = s.entries + f * height * width, *next = first;
        const int32_t *places = at + f, *corner = s.corners, *shifts = s.shifts + 1;
        for (I i = 0; i < height; i++) {
            const float *value = g + f * stride[1] + i * down;
            for (I j = 0; j < width; j++, places += filters, value += right) {
                *next = (Entry){*corner++ + shifts[*places], *value};
                next += 1 + (*places >> 31);
            }
        }
        s.segments[f] = (Segment){f * filter_lanes(b), first - s.entries, next - first};
        bias[f] += sum_of(first, next - first);
    }
    return filters;
}

/* Makes one segment per position of this image, with the filters that selected it. */
static I by_position(const Block *b, const float *g, const I *stride, const int32_t *at, Scratch s) {
    I inside = b->pool_rows * b->pool_columns, all = filter_lanes(b), filters = b->filters, step = stride[1];
    I used = 0, segments = 0;
    for (I i = 0; i < b->out_height; i++)
        for (I j = 0; j < b->out_width; j++, at += filters) {
            const float *values = g + i * stride[2] + j * stride[3];
            memset(s.counts, 0, (inside + 1) * sizeof(int32_t));
            for (I f = 0; f < filters; f++) {
                I place = at[f] + 1; /* 0 if the ReLU is off */
                s.buckets[place * filters + s.counts[place]++] = (Entry){f * all, values[f * step]};
            }
            for (I place = 1; place <= inside; place++) {
                I count = s.counts[place];
                if (!count)
                    continue;
                memcpy(s.entries + used, s.buckets + place * filters, count * sizeof(Entry));
                s.segments[segments++] = (Segment){s.corners[i * b->out_width + j] + s.shifts[place], used, count};
                used += count;
            }
        }
    return segments;
}

/* Adds up all segments, one piece of the window at a time: filters from the image, or the image from the filters. */
static void add_up(const Block *b, float *filters, float *image, int into_image, Scratch s, I segments) {
    I wide = row_lanes(b), line = b->padded_width * b->channels, all = wide / LANES;
    I parts = (all + MOST - 1) / MOST, most = (all + parts - 1) / parts; /* vectors of a row at a time */
    I together = all > 3 ? 1 : least(b->rows, rows_at_most[all]);        /* several rows at a time if rows are short */
    for (I i = 0; i < b->rows; i += together)
        for (I j = 0; j < all; j += most) {
            Piece *add = piece_for(least(together, b->rows - i), least(most, all - j));
            float *in_filters = filters + i * wide + j * LANES, *in_image = image + i * line + j * LANES;
            for (Segment *k = s.segments; k < s.segments + segments; k++)
                if (into_image)
                    add(in_image + k->at, line, in_filters, wide, s.entries + k->first, k->count);
                else
                    add(in_filters + k->at, wide, in_image, line, s.entries + k->first, k->count);
        }
}

/* Computes the gradients of filters and bias in torch's layout, and of the padded input if `input` is given. g is the
 * gradient of y with strides (image, filter, row, column); `at` and `padded` come from the forward pass. */
void conv_backward(const Block *b, const float *g, const I *stride, const int32_t *at, float *padded, const float *w,
                   float *scratch, float *filters, float *bias, float *input) {
    I size = b->padded_height * b->padded_width * b->channels, outputs = b->out_height * b->out_width * b->filters;
    Scratch s;
    carve(b, scratch, &s);
    find_places(b, s);
    memset(s.gradient, 0, b->filters * filter_lanes(b) * sizeof(float));
    memset(bias, 0, b->filters * sizeof(float));
    if (input) {
        pack_rows(b, w, s.filters);
        memset(input, 0, conv_padded_floats(b) * sizeof(float));
    }
    for (I n = 0; n < b->images; n++) {
        const float *here = g + n * stride[0];
        const int32_t *places = at + n * outputs;
        add_up(b, s.gradient, padded + n * size, 0, s, by_filter(b, here, stride, places, s, bias));
        if (input)
            add_up(b, s.filters, input + n * size, 1, s, by_position(b, here, stride, places, s));
    }
    unpack_rows(b, s.gradient, filters);
}
