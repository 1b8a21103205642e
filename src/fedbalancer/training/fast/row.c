/* One SGD step of a small sequence of convolutions and dense layers, with the cross-entropy, as one call.
 *
 * With batches of ten and a model that fits the caches, most of a step is overhead around the kernels: calls from
 * Python, tensors, checks. Here the kernels of conv.c and dense.c are called from C, in memory that is already
 * allocated. They are passed as pointers, so this file does not depend on their implementation.
 *
 * Float32, row-major; single thread, no state besides the arguments; the order of every sum is fixed. */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef ptrdiff_t I;
typedef struct Block Block; /* of conv.c */

typedef struct {
    void (*conv_forward)(const Block *, const float *, const int64_t *, const float *, const float *, float *, float *,
                         float *, int32_t *);
    void (*conv_backward)(const Block *, const float *, const int64_t *, const int32_t *, float *, const float *,
                          float *, float *, float *, float *);
    void (*dense_dots)(float *, const float *, const float *, I, I, I, float *);
    void (*dense_step)(float *, float *, const float *, const float *, float, const float *, float, const float *, I, I,
                       I, float *);
} Kernels;

/* Trained numbers, and the target of a proximal step (0 without one). */
typedef struct {
    float *now;
    const float *start;
    I count;
} Parameter;

typedef struct {
    const Block *block;
    int64_t in_strides[4], g_strides[4];
    Parameter weight, bias;
    float *weight_grad, *bias_grad, *padded, *outputs, *padded_grad; /* the last is 0 in the first layer */
    int32_t *places;
    const float *g; /* gradient of the outputs, written by the next layer */
} Conv;

typedef struct {
    I in, out, relu;
    Parameter weight, bias; /* the bias may be missing */
    float *outputs, *g;     /* g: gradient of the outputs before the ReLU */
} Dense;

typedef struct {
    const Kernels *kernels;
    I convs, denses, batch;
    Conv *conv;
    Dense *dense;
    I channels, positions; /* of the last convolution's outputs, which dense layers read channel by channel */
    float *flat, *flat_grad, *scratch;
} Row;

static void flatten(const Row *row) {
    const float *from = row->conv[row->convs - 1].outputs;
    float *to = row->flat;
    for (I b = 0; b < row->batch; b++, from += row->positions * row->channels)
        for (I c = 0; c < row->channels; c++)
            for (I p = 0; p < row->positions; p++) *to++ = from[p * row->channels + c];
}

static void forward(const Row *row, const float *x) {
    for (I k = 0; k < row->convs; k++) {
        Conv *c = row->conv + k;
        row->kernels->conv_forward(c->block, x, c->in_strides, c->weight.now, c->bias.now, c->padded, row->scratch,
                                   c->outputs, c->places);
        x = c->outputs;
    }
    if (row->convs) {
        flatten(row);
        x = row->flat;
    }
    for (I k = 0; k < row->denses; k++) {
        Dense *d = row->dense + k;
        for (I b = 0; b < row->batch; b++) {
            if (d->bias.now)
                memcpy(d->outputs + b * d->out, d->bias.now, d->out * sizeof(float));
            else
                memset(d->outputs + b * d->out, 0, d->out * sizeof(float));
        }
        row->kernels->dense_dots(d->outputs, x, d->weight.now, row->batch, d->in, d->out, row->scratch);
        if (d->relu)
            for (I i = 0; i < row->batch * d->out; i++) d->outputs[i] = d->outputs[i] < 0 ? 0 : d->outputs[i];
        x = d->outputs;
    }
}

/* Computes the cross-entropy of every sample, and the gradient of its mean. */
static void loss(const Dense *last, I batch, const int64_t *labels, float *losses) {
    for (I b = 0; b < batch; b++) {
        const float *y = last->outputs + b * last->out;
        float *g = last->g + b * last->out, most = y[0], sum = 0;
        for (I i = 1; i < last->out; i++) most = y[i] > most ? y[i] : most;
        for (I i = 0; i < last->out; i++) sum += g[i] = expf(y[i] - most);
        losses[b] = logf(sum) + most - y[labels[b]];
        for (I i = 0; i < last->out; i++) g[i] /= sum * batch;
        g[labels[b]] -= 1.0f / batch;
    }
}

static void move(Parameter p, const float *gradient, float rate, float share) {
    if (p.start)
        for (I i = 0; i < p.count; i++) p.now[i] += share * (p.start[i] - p.now[i]) - rate * gradient[i];
    else
        for (I i = 0; i < p.count; i++) p.now[i] -= rate * gradient[i];
}

static void dense_backward(const Row *row, const float *x, float rate, float share) {
    for (I k = row->denses - 1; k >= 0; k--) {
        Dense *d = row->dense + k;
        const float *in = k ? d[-1].outputs : row->convs ? row->flat : x;
        float *z = k ? d[-1].g : row->convs ? row->flat_grad : 0, *sums = row->scratch;
        if (z) memset(z, 0, row->batch * d->in * sizeof(float));
        row->kernels->dense_step(z, d->weight.now, d->weight.now, d->weight.start, share, d->g, -rate, in, row->batch,
                                 d->in, d->out, row->scratch);
        if (d->bias.now) {
            memcpy(sums, d->g, d->out * sizeof(float));
            for (I b = 1; b < row->batch; b++)
                for (I i = 0; i < d->out; i++) sums[i] += d->g[b * d->out + i];
            move(d->bias, sums, rate, share);
        }
        if (k && d[-1].relu)
            for (I i = 0; i < row->batch * d->in; i++) z[i] = in[i] <= 0 ? 0 : z[i];
    }
}

static void conv_backward(const Row *row, float rate, float share) {
    for (I k = row->convs - 1; k >= 0; k--) {
        Conv *c = row->conv + k;
        row->kernels->conv_backward(c->block, c->g, c->g_strides, c->places, c->padded, c->weight.now, row->scratch,
                                    c->weight_grad, c->bias_grad, c->padded_grad);
        move(c->weight, c->weight_grad, rate, share);
        if (c->bias.count) move(c->bias, c->bias_grad, rate, share);
    }
}

/* Computes w <- w - rate * gradient + share * (start - w). Returns 1, with nothing written, if a label is not a class.
 */
int row_step(const Row *row, const float *x, const int64_t *labels, float *losses, float rate, float share) {
    const Dense *last = row->dense + row->denses - 1;
    for (I b = 0; b < row->batch; b++)
        if (labels[b] < 0 || labels[b] >= last->out) return 1;
    forward(row, x);
    loss(last, row->batch, labels, losses);
    dense_backward(row, x, rate, share);
    conv_backward(row, rate, share);
    return 0;
}
