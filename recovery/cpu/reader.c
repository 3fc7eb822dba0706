/* Read packed sequences through Llama-like layers, forwards and backwards. A thread takes a block of tokens from product to
   product, so that its cache holds them. */

#include "linear.h"

long threads(void) { return omp_get_max_threads(); }

/* ---- norms, gates and rotations, and their gradients ---- */

/* dx = more + the gradient of x; the weight's gradient is accumulated */
static void norm_back(
    const float *dy, const float *x, const float *weight, float scale, long width, const float *more, float *dx,
    float *d_weight)
{
    float dot = 0;
#pragma omp simd reduction(+ : dot)
    for (long i = 0; i < width; i++) dot += dy[i] * weight[i] * x[i];
    float pull = dot * scale * scale / width;
#pragma omp simd
    for (long i = 0; i < width; i++) {
        d_weight[i] += dy[i] * x[i] * scale;
        dx[i] = (more ? more[i] : 0) + scale * (dy[i] * weight[i] - x[i] * pull);
    }
}

/* silu(gate) * up, where a row holds gate and then up */
void gates(const float *gate_up, long rows, long feed, float *out)
{
    for (long i = 0; i < rows; i++) {
        const float *gate = gate_up + 2 * i * feed, *up = gate + feed;
#pragma omp simd
        for (long j = 0; j < feed; j++) out[i * feed + j] = gate[j] / (1 + exponential(-gate[j])) * up[j];
    }
}

/* Gradients of gate and up; dy is replaced by the output of `gates`. */
void gates_back(const float *gate_up, float *dy, long rows, long feed, float *d_gate_up)
{
    for (long i = 0; i < rows; i++) {
        const float *gate = gate_up + 2 * i * feed, *up = gate + feed;
        float *d_gate = d_gate_up + 2 * i * feed, *d_up = d_gate + feed, *own = dy + i * feed;
#pragma omp simd
        for (long j = 0; j < feed; j++) {
            float share = 1 / (1 + exponential(-gate[j])), swish = gate[j] * share;
            d_up[j] = own[j] * swish;
            d_gate[j] = own[j] * up[j] * share * (1 + gate[j] * (1 - share));
            own[j] = swish * up[j];
        }
    }
}

/* Take queries and keys from rows of qkv, norm them where the model does, and rotate them. */
static void turns(
    const Shape *shape, const float *qkv, const float *head_norm, float epsilon, const float *cos, const float *sin,
    long rows, float *turned, float *scale)
{
    long W = shape->width, heads = shape->queries + shape->keys, all = heads + shape->keys;
    for (long i = 0; i < rows; i++)
        for (long h = 0; h < heads; h++) {
            const float *x = qkv + (i * all + h) * W;
            float *y = turned + (i * heads + h) * W;
            if (head_norm) scale[i * heads + h] = norm(x, head_norm + h * W, epsilon, W, y);
            else memcpy(y, x, W * sizeof(float));
            rotate(y, cos + i * W, sin + i * W, W);
        }
}

/* Gradients of qkv from those of rotated queries and keys; d_turned is rotated back in place. */
static void turns_back(
    const Shape *shape, float *d_turned, const float *qkv, const float *head_norm, const float *scale, const float *cos,
    const float *sin, long rows, float *d_qkv, float *d_norm)
{
    long W = shape->width, heads = shape->queries + shape->keys, all = heads + shape->keys, half = W / 2;
    for (long i = 0; i < rows; i++)
        for (long h = 0; h < heads; h++) {
            float *dy = d_turned + (i * heads + h) * W, *dx = d_qkv + (i * all + h) * W;
            const float *c = cos + i * W, *s = sin + i * W;
#pragma omp simd
            for (long w = 0; w < half; w++) {
                float one = dy[w], other = dy[w + half];
                dy[w] = one * c[w] + other * s[w + half];
                dy[w + half] = other * c[w + half] - one * s[w];
            }
            if (head_norm)
                norm_back(dy, qkv + (i * all + h) * W, head_norm + h * W, scale[i * heads + h], W, 0, dx, d_norm + h * W);
            else memcpy(dx, dy, W * sizeof(float));
        }
}

/* ---- all layers, forwards and backwards ---- */

/* Copy some heads of each token (rows `stride` floats apart) into its slot of its row in the cache `held`. */
void place(
    const float *tokens, long stride, long count, long heads, long width, const long *rows, const long *slots,
    long row_stride, long head_stride, float *held)
{
#pragma omp parallel for schedule(static)
    for (long i = 0; i < count; i++)
        for (long h = 0; h < heads; h++)
            memcpy(held + rows[i] * row_stride + h * head_stride + slots[i] * width, tokens + i * stride + h * width,
                   width * sizeof(float));
}

/* What a layer keeps for its backward pass, row after row; without one, `gate_up` is null */
typedef struct {
    float *x, *scale, *qkv, *turned, *head_scale, *mixed, *sums, *middle, *middle_scale, *gate_up;
} Kept;

/* Where the gradients of a layer's weights go: those of linear layers in the weight's type, all others in fp32 */
typedef struct {
    float *before, *qkv, *qkv_bias, *head_norm, *out, *out_bias, *between;
    float *gate, *gate_bias, *up, *up_bias, *down, *down_bias;
} Slopes;

/* Gradients of a layer's activations, and activations that are recomputed; `out` may be `x`, and `some_mixed` `mixed`,
   if all tokens are wanted. `norms` holds each thread's own sums. */
typedef struct {
    float *out, *x, *middle, *normed, *gated, *gate_up, *some_mixed, *mixed, *turned, *qkv, *norms;
    float *rounded_x, *rounded_dy; /* of bf16: for `linear_slopes` */
} Back;

enum { TOKENS = 256 }; /* in a block */

/* The number of blocks: equally many for each thread, none above TOKENS. */
static long blocks(long rows)
{
    long all = omp_get_max_threads();
    return least(rows, (rows + all * TOKENS - 1) / (all * TOKENS) * all);
}

static inline long most(long a, long b) { return a > b ? a : b; }

/* The most numbers that a linear layer takes or gives */
static long widest(const Shape *shape)
{
    return most(most(shape->hidden, shape->feed), (shape->queries + 2 * shape->keys) * shape->width);
}

/* Floats at the end of a thread's scratch memory, for bf16 of a block of tokens */
static long rounding_size(const Shape *shape, long rows)
{
    return shape->half ? least(rows, TOKENS) * widest(shape) / 2 : 0;
}

/* Floats of scratch memory a thread needs for so many tokens in sequences of at most `longest` */
long scratch_size(const Shape *shape, long rows, long longest)
{
    long for_tokens = least(rows, TOKENS) * (shape->hidden + 3 * shape->feed);
    long for_slopes = shape->half ? TOKENS * widest(shape) : 0;
    return most(most(for_tokens, for_slopes), attention_size(shape, longest)) + rounding_size(shape, rows);
}

static void rescaled(const float *x, const float *weight, const float *scale, long rows, long width, float *y)
{
    for (long i = 0; i < rows; i++)
#pragma omp simd
        for (long j = 0; j < width; j++) y[i * width + j] = x[i * width + j] * scale[i] * weight[j];
}

typedef struct {
    Linear qkv, out, gate, up, down;
} Linears;

/* A thread's view of a layer. Without gradients all pointers of `d` are null. */
static Linears linears(const Shape *shape, const Layer *w, const Slopes *d, const Reading *run)
{
    long D = shape->hidden, F = shape->feed, mixed = shape->queries * shape->width;
    float *room = run->scratch + (omp_get_thread_num() + 1) * run->each - rounding_size(shape, run->rows);
    int half = shape->half;
    return (Linears){
        {w->qkv, w->qkv_bias, d->qkv, d->qkv_bias, D, mixed + 2 * shape->keys * shape->width, half, room},
        {w->out, w->out_bias, d->out, d->out_bias, mixed, D, half, room},
        {w->gate, w->gate_bias, d->gate, d->gate_bias, D, F, half, room},
        {w->up, w->up_bias, d->up, d->up_bias, D, F, half, room},
        {w->down, w->down_bias, d->down, d->down_bias, F, D, half, room},
    };
}

/* A block of tokens up to its rotated queries, keys and values */
static void before_attention(
    const Shape *shape, const Layer *w, const Linears *own, const Kept *k, const Reading *run, long at, long rows, float *y)
{
    long D = shape->hidden, W = shape->width, heads = shape->queries + shape->keys, all = own->qkv.outputs;
    for (long i = at; i < at + rows; i++)
        k->scale[i] = norm(k->x + i * D, w->before, w->before_epsilon, D, y + (i - at) * D);
    linear(own->qkv, y, rows, 0, k->qkv + at * all, all);
    turns(shape, k->qkv + at * all, w->head_norm, w->head_epsilon, run->cos + at * W, run->sin + at * W, rows,
          k->turned + at * heads * W, k->head_scale + at * heads);
}

/* A block from the output of attention to the end of the layer */
static void after_attention(
    const Shape *shape, const Layer *w, const Linears *own, const Kept *k, long at, long rows, float *scratch, float *out)
{
    long D = shape->hidden, F = shape->feed, mixed = own->out.inputs;
    float *z = scratch, *gated = z + rows * D, *gate_up = k->gate_up ? k->gate_up + at * 2 * F : gated + rows * F;
    linear(own->out, k->mixed + at * mixed, rows, k->x + at * D, k->middle + at * D, D);
    for (long i = at; i < at + rows; i++)
        k->middle_scale[i] = norm(k->middle + i * D, w->between, w->between_epsilon, D, z + (i - at) * D);
    linear(own->gate, z, rows, 0, gate_up, 2 * F);
    linear(own->up, z, rows, 0, gate_up + F, 2 * F);
    gates(gate_up, rows, F, gated);
    linear(own->down, gated, rows, k->middle + at * D, out + at * D, D);
}

/* Inside a parallel region: gather the wanted rows, or scatter them back over zeros. */
static void gather(const float *from, const Reading *run, long width, float *to)
{
#pragma omp for schedule(static)
    for (long i = 0; i < run->wanted_rows; i++)
        memcpy(to + i * width, from + run->wanted[i] * width, width * sizeof(float));
}

static void scatter(const float *from, const Reading *run, long width, float *to)
{
#pragma omp for schedule(static)
    for (long i = 0; i < run->rows; i++) memset(to + i * width, 0, width * sizeof(float));
#pragma omp for schedule(static)
    for (long i = 0; i < run->wanted_rows; i++)
        memcpy(to + run->wanted[i] * width, from + i * width, width * sizeof(float));
}

/* From the first layer's x to `out`, which may be the shared x of all layers. What the last layer keeps of the wanted tokens
   comes after all others in `kept`. */
void forwards(const Shape *shape, const Layer *layers, const Kept *kept, const Reading *run, float *out)
{
    long count = blocks(run->rows);
#pragma omp parallel
    for (long l = 0; l < shape->layers; l++) {
        const Layer *w = layers + l;
        const Linears own = linears(shape, w, &(Slopes){0}, run);
        const Kept *k = kept + l;
        float *scratch = run->scratch + omp_get_thread_num() * run->each;
#pragma omp for schedule(static)
        for (long b = 0; b < count; b++) {
            long at = run->rows * b / count, end = run->rows * (b + 1) / count;
            before_attention(shape, w, &own, k, run, at, end - at, scratch);
        }
        attention(shape, run, k->turned, k->qkv, w->scale, k->mixed, k->sums);
        int last = l + 1 == shape->layers, fewer = last && run->wanted_rows < run->rows;
        if (fewer) {
            gather(k->x, run, shape->hidden, k[1].x);
            gather(k->mixed, run, own.out.inputs, k[1].mixed);
        }
        long rows = fewer ? run->wanted_rows : run->rows, some = blocks(rows);
#pragma omp for schedule(static)
        for (long b = 0; b < some; b++) {
            long at = rows * b / some, end = rows * (b + 1) / some;
            after_attention(shape, w, &own, fewer ? k + 1 : k, at, end - at, scratch, last ? out : k[1].x);
        }
    }
}

/* Backwards through the second half of a layer: from its output to the output of attention. */
static void after_attention_back(
    const Shape *shape, const Layer *w, const Kept *k, const Linears *own, const Back *d, float *d_between, long at,
    long rows, float *dz)
{
    long D = shape->hidden, F = shape->feed;
    const float *middle = k->middle + at * D, *scale = k->middle_scale + at, *out = d->out + at * D;
    float *gated = d->gated + at * F, *gate_up = d->gate_up + at * 2 * F, *d_middle = d->middle + at * D;
    linear_back(own->down, out, D, rows, 0, gated);
    gates_back(k->gate_up + at * 2 * F, gated, rows, F, gate_up);
    rescaled(middle, w->between, scale, rows, D, d->normed + at * D);
    linear_back(own->gate, gate_up, 2 * F, rows, 0, dz);
    linear_back(own->up, gate_up + F, 2 * F, rows, 1, dz);
    for (long i = 0; i < rows; i++)
        norm_back(dz + i * D, middle + i * D, w->between, scale[i], D, out + i * D, d_middle + i * D, d_between);
    linear_back(own->out, d_middle, D, rows, 0, d->some_mixed + at * own->out.inputs);
}

/* Backwards through the first half; `more` is the gradient of the residual stream past attention. */
static void before_attention_back(
    const Shape *shape, const Layer *w, const Kept *k, const Linears *own, const Back *d, const Reading *run,
    const float *more, float *d_before, float *d_head_norm, long at, long rows, float *dy)
{
    long D = shape->hidden, W = shape->width, heads = shape->queries + shape->keys, all = own->qkv.outputs;
    const float *x = k->x + at * D, *scale = k->scale + at;
    float *d_qkv = d->qkv + at * all;
    turns_back(shape, d->turned + at * heads * W, k->qkv + at * all, w->head_norm, k->head_scale + at * heads,
               run->cos + at * W, run->sin + at * W, rows, d_qkv, d_head_norm);
    rescaled(x, w->before, scale, rows, D, d->normed + at * D);
    linear_back(own->qkv, d_qkv, all, rows, 0, dy);
    for (long i = 0; i < rows; i++)
        norm_back(dy + i * D, x + i * D, w->before, scale[i], D, more + (at + i) * D, d->x + (at + i) * D, d_before);
}

/* Inside a parallel region: add up the threads' own sums and reset them. */
static void collect(float *parts, long size, long from, long count, float *to)
{
#pragma omp for schedule(static)
    for (long i = 0; i < count; i++) {
        float sum = 0;
        for (long t = 0; t < omp_get_num_threads(); t++) sum += parts[t * size + from + i], parts[t * size + from + i] = 0;
        if (to) to[i] = sum;
    }
}

/* From the gradient `out` of the last layer's output to `x`, that of the embeddings; `norms` start as zeros. */
void backwards(
    const Shape *shape, const Layer *layers, const Kept *kept, const Reading *run, const Slopes *slopes, const Back *back)
{
    long D = shape->hidden, W = shape->width, heads = shape->queries + shape->keys, size = 2 * D + heads * W;
    long count = blocks(run->rows);
#pragma omp parallel
    for (long l = shape->layers - 1; l >= 0; l--) {
        const Layer *w = layers + l;
        const Linears own = linears(shape, w, slopes + l, run);
        float *scratch = run->scratch + omp_get_thread_num() * run->each;
        float *d_before = back->norms + omp_get_thread_num() * size, *d_between = d_before + D;
        int fewer = l + 1 == shape->layers && run->wanted_rows < run->rows;
        const Kept *k = kept + l, *after = fewer ? k + 1 : k;
        Back d = *back;
        if (!fewer) d.out = d.x, d.some_mixed = d.mixed;
        Room room = {d.rounded_x, d.rounded_dy, scratch, run->each - rounding_size(shape, run->rows)};
        long rows = fewer ? run->wanted_rows : run->rows, some = blocks(rows);
#pragma omp for schedule(static)
        for (long b = 0; b < some; b++) {
            long at = rows * b / some, end = rows * (b + 1) / some;
            after_attention_back(shape, w, after, &own, &d, d_between, at, end - at, scratch);
        }
        linear_slopes(own.down, d.gated, d.out, D, rows, room);
        linear_slopes(own.gate, d.normed, d.gate_up, 2 * shape->feed, rows, room);
        linear_slopes(own.up, d.normed, d.gate_up + shape->feed, 2 * shape->feed, rows, room);
        linear_slopes(own.out, after->mixed, d.middle, D, rows, room);
        if (fewer) {
            scatter(d.middle, run, D, d.x);
            scatter(d.some_mixed, run, own.out.inputs, d.mixed);
        }
        attention_back(shape, run, k->turned, k->qkv, w->scale, k->mixed, k->sums, d.mixed, d.turned, d.qkv);
#pragma omp for schedule(static)
        for (long b = 0; b < count; b++) {
            long at = run->rows * b / count, end = run->rows * (b + 1) / count;
            before_attention_back(shape, w, k, &own, &d, run, fewer ? d.x : d.middle, d_before, d_between + D, at, end - at,
                                  scratch);
        }
        linear_slopes(own.qkv, d.normed, d.qkv, own.qkv.outputs, run->rows, room);
        collect(back->norms, size, 0, D, slopes[l].before);
        collect(back->norms, size, D, D, slopes[l].between);
        collect(back->norms, size, 2 * D, heads * W, slopes[l].head_norm);
    }
}
