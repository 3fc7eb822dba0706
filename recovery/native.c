/* What PyTorch does in many passes over memory, in one: in fp32, on a CPU, on the threads that PyTorch has.

   native.py compiles this file where it runs, for the processor it runs on, and says what the arguments mean.
   Every function is called outside a parallel region, and begins one. */

#include <math.h>
#include <omp.h>
#include <stdint.h>
#include <string.h>

/* A tile of a product, ROWS x PANEL numbers, stays in registers while their sums grow. */
#if defined(__AVX512F__)
enum { LANES = 16, ROWS = 8, VECTORS = 3 };
#elif defined(__AVX2__)
enum { LANES = 8, ROWS = 4, VECTORS = 3 };
#else
enum { LANES = 4, ROWS = 4, VECTORS = 4 };
#endif
enum { PANEL = LANES * VECTORS };
typedef float vector __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef int32_t integers __attribute__((vector_size(LANES * 4)));

long panel_width(void) { return PANEL; }
long threads(void) { return omp_get_max_threads(); }

static inline long least(long a, long b) { return a < b ? a : b; }

/* e^x to about two units in the last place: 2^n e^r by a polynomial in r. */
static inline float exponential(float x)
{
    x = x > 88.0f ? 88.0f : x;
    x = x < -87.0f ? -87.0f : x;
    float n = (x * 1.44269504f + 12582912.0f) - 12582912.0f; /* adding 1.5 * 2^23 rounds */
    float r = x - n * 0.693359375f + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    union { int32_t bits; float number; } power = {((int32_t)n + 127) << 23};
    return p * power.number;
}

/* ---- products: a weight lies in panels of PANEL columns, each row after row, the last filled with zeros ---- */

/* out = a @ panel + bias + more, for as many rows and vectors as the compiler is told; a's number of row i and depth k
   lies at i * down + k * along */
__attribute__((always_inline)) static inline void tile(
    const int rows, const int vectors, const float *a, long down, long along, const float *panel, long depth, float *out,
    long stride, long columns, const float *bias, const float *more)
{
    vector sum[ROWS][VECTORS] = {0};
    for (long k = 0; k < depth; k++, panel += vectors * LANES)
        for (int i = 0; i < rows; i++)
            for (int j = 0; j < vectors; j++)
                sum[i][j] += a[i * down + k * along] * *(const vector *)(panel + j * LANES);
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < vectors; j++) {
            long at = j * LANES, here = i * stride + at;
            if (at + LANES <= columns) {
                if (bias) sum[i][j] += *(const vector *)(bias + at);
                if (more) sum[i][j] += *(const vector *)(more + here);
                *(vector *)(out + here) = sum[i][j];
            } else
                for (long c = at; c < columns; c++)
                    out[i * stride + c] = sum[i][j][c - at] + (bias ? bias[c] : 0) + (more ? more[i * stride + c] : 0);
        }
}

#if defined(__AVX512F__)
#define OF_EVERY_HEIGHT OF(1) OF(2) OF(3) OF(4) OF(5) OF(6) OF(7) OF(8)
#else
#define OF_EVERY_HEIGHT OF(1) OF(2) OF(3) OF(4)
#endif

static void panel_product(
    const float *a, long rows, const float *panel, long depth, float *out, long stride, long columns,
    const float *bias, const float *more)
{
    for (; rows > 0; rows -= ROWS, a += ROWS * depth, out += ROWS * stride, more += more ? ROWS * stride : 0)
        switch (least(rows, ROWS)) {
#define OF(n) case n: tile(n, VECTORS, a, depth, 1, panel, depth, out, stride, columns, bias, more); break;
            OF_EVERY_HEIGHT
#undef OF
        }
}

/* out = a @ weight + bias + more; inside a parallel region, each thread takes its panels */
static void product(
    const float *a, long rows, const float *weight, long depth, float *out, long columns, const float *bias,
    const float *more)
{
#pragma omp for schedule(static)
    for (long c = 0; c < columns; c += PANEL)
        panel_product(a, rows, weight + c * depth, depth, out + c, columns, least(PANEL, columns - c),
                      bias ? bias + c : 0, more ? more + c : 0);
}

/* ---- one more token a row through Llama-like layers ---- */

typedef struct {
    long layers, hidden, queries, keys, width, feed;
} Shape;

typedef struct {
    const float *before, *qkv, *qkv_bias, *head_norm, *out, *out_bias, *between;
    const float *gate, *gate_bias, *up, *up_bias, *down, *down_bias;
    float *keys, *values;
    long row_stride, head_stride;
    float before_epsilon, head_epsilon, between_epsilon, scale;
} Layer;

/* What it was multiplied with is given back. */
static float norm(const float *x, const float *weight, float epsilon, long width, float *y)
{
    float squares = 0;
#pragma omp simd reduction(+ : squares)
    for (long i = 0; i < width; i++) squares += x[i] * x[i];
    float scale = 1 / sqrtf(squares / width + epsilon);
#pragma omp simd
    for (long i = 0; i < width; i++) y[i] = x[i] * scale * weight[i];
    return scale;
}

/* Both halves turned against each other */
static void rotate(float *x, const float *cos, const float *sin, long width)
{
    long half = width / 2;
#pragma omp simd
    for (long i = 0; i < half; i++) {
        float one = x[i], other = x[i + half];
        x[i] = one * cos[i] - other * sin[i];
        x[i + half] = other * cos[i + half] + one * sin[i + half];
    }
}

/* The sums of LANES vectors: at each step the halves of two change places, and are added up. */
static inline vector sums_of(vector *row)
{
#pragma GCC unroll 8
    for (int step = LANES / 2; step; step /= 2) {
        integers same, other;
        for (int j = 0; j < LANES; j++) {
            same[j] = j & step ? LANES + j : j;
            other[j] = j & step ? LANES + j - step : j + step;
        }
#pragma GCC unroll 16
        for (int i = 0; i < step; i++)
            row[i] = __builtin_shuffle(row[i], row[i + step], same) + __builtin_shuffle(row[i], row[i + step], other);
    }
    return row[0];
}

static inline long whole_vectors(long n) { return (n + LANES - 1) / LANES * LANES; }

/* score = keys @ query * scale, up to a whole vector; of a head of so many vectors, or of another width */
__attribute__((always_inline)) static inline void match(
    const int vectors, const float *query, const float *keys, long count, long width, float scale, float *score)
{
    if (!vectors)
        for (long s = 0; s < count; s++) {
            float dot = 0;
#pragma omp simd reduction(+ : dot)
            for (long w = 0; w < width; w++) dot += query[w] * keys[s * width + w];
            score[s] = dot * scale;
        }
    vector whole[vectors + 1];
    for (int j = 0; j < vectors; j++) whole[j] = *(const vector *)(query + j * LANES);
    for (long s = 0; vectors && s < count; s += LANES) {
        vector row[LANES];
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++) {
            const float *key = keys + (s + i < count ? s + i : s) * width;
            row[i] = whole[0] * *(const vector *)key;
            for (int j = 1; j < vectors; j++) row[i] += whole[j] * *(const vector *)(key + j * LANES);
        }
        *(vector *)(score + s) = sums_of(row) * scale;
    }
}

/* out = score @ values * scale */
__attribute__((always_inline)) static inline void mix(
    const int vectors, const float *score, const float *values, long count, long width, float scale, float *out)
{
    enum { CHAINS = 4 }; /* that do not wait for each other */
    vector sum[CHAINS][vectors + 1];
    memset(sum, 0, sizeof sum);
    memset(out, 0, width * sizeof(float));
    long s = 0;
    for (; vectors && s + CHAINS <= count; s += CHAINS)
        for (int c = 0; c < CHAINS; c++)
            for (int j = 0; j < vectors; j++)
                sum[c][j] += score[s + c] * *(const vector *)(values + (s + c) * width + j * LANES);
    for (; s < count; s++)
#pragma omp simd
        for (long w = 0; w < (vectors ? vectors * LANES : width); w++) out[w] += score[s] * values[s * width + w];
    for (int j = 0; j < vectors; j++) *(vector *)(out + j * LANES) += sum[0][j] + sum[1][j] + sum[2][j] + sum[3][j];
#pragma omp simd
    for (long w = 0; w < width; w++) out[w] *= scale;
}

/* One query over some slots; score has room for whole vectors of them. */
__attribute__((always_inline)) static inline void attend_as_wide(
    const int vectors, const float *query, const float *keys, const float *values, long count, long width, float scale,
    float *score, float *out)
{
    long all = whole_vectors(count);
    float most = -INFINITY, total = 0;
    match(vectors, query, keys, count, width, scale, score);
    for (long s = count; s < all; s++) score[s] = -INFINITY;
#pragma omp simd reduction(max : most)
    for (long s = 0; s < all; s++) most = score[s] > most ? score[s] : most;
#pragma omp simd reduction(+ : total)
    for (long s = 0; s < all; s++) total += score[s] = exponential(score[s] - most);
    mix(vectors, score, values, count, width, 1 / total, out);
}

static void attend(
    const float *query, const float *keys, const float *values, long count, long width, float scale, float *score,
    float *out)
{
    switch (width % LANES ? 0 : width / LANES) {
#define OF(n) case n: attend_as_wide(n, query, keys, values, count, width, scale, score, out); break;
        OF(1) OF(2) OF(4) OF(8)
#undef OF
        default: attend_as_wide(0, query, keys, values, count, width, scale, score, out);
    }
}

/* A token's queries, keys and values in `own`: keys and values go into the slot, what is attended to into `mixed` */
static void look_back(
    const Shape *shape, const Layer *layer, long place, float *own, const float *cos, const float *sin, long first,
    long slot, float *score, float *mixed)
{
    long W = shape->width, heads = shape->queries + shape->keys, group = shape->queries / shape->keys;
    for (long h = 0; h < heads; h++) {
        if (layer->head_norm) norm(own + h * W, layer->head_norm + h * W, layer->head_epsilon, W, own + h * W);
        rotate(own + h * W, cos, sin, W);
    }
    for (long g = 0; g < shape->keys; g++) {
        long start = place * layer->row_stride + g * layer->head_stride;
        float *keys = layer->keys + start, *values = layer->values + start;
        memcpy(keys + slot * W, own + (shape->queries + g) * W, W * sizeof(float));
        memcpy(values + slot * W, own + (heads + g) * W, W * sizeof(float));
        for (long h = g * group; h < (g + 1) * group; h++)
            attend(own + h * W, keys + first * W, values + first * W, slot + 1 - first, W, layer->scale, score, mixed + h * W);
    }
}

/* gate = silu(x @ gate weight) * (x @ up weight), a panel and some rows at a time */
static void gated(const Layer *layer, const float *x, long rows, long depth, float *gate, long columns)
{
    enum { AT_ONCE = 8 * ROWS };
#pragma omp for schedule(static)
    for (long c = 0; c < columns; c += PANEL) {
        long n = least(PANEL, columns - c);
        for (long b = 0; b < rows; b += AT_ONCE) {
            float up[AT_ONCE * PANEL], *own = gate + b * columns + c;
            long some = least(AT_ONCE, rows - b);
            panel_product(x + b * depth, some, layer->gate + c * depth, depth, own, columns, n,
                          layer->gate_bias ? layer->gate_bias + c : 0, 0);
            panel_product(x + b * depth, some, layer->up + c * depth, depth, up, PANEL, n,
                          layer->up_bias ? layer->up_bias + c : 0, 0);
            for (long i = 0; i < some; i++)
#pragma omp simd
                for (long j = 0; j < n; j++)
                    own[i * columns + j] *= up[i * PANEL + j] / (1 + exponential(-own[i * columns + j]));
        }
    }
}

/* x (rows, hidden) are embeddings of what goes into `slot`, and become what the last layer leaves. Keys and values of a
   row are at its place, from its first slot on, in `starts`; `cos` and `sin` begin with the position of that. Given a head, `out` is (rows, outputs), else the
   normed x. scratch holds rows * (hidden + (2 queries + 2 keys) * width + feed + slot + 17) numbers. */
void decode(
    const Shape *shape, const Layer *layers, long rows, float *x, const float *cos, const float *sin, const long *starts,
    const long *places, long slot, const float *last, float epsilon, const float *head, long outputs, float *out,
    float *scratch)
{
    long D = shape->hidden, W = shape->width, F = shape->feed, queries = shape->queries * W;
    long all = queries + 2 * shape->keys * W, seen = whole_vectors(slot + 1);
    float *y = scratch, *qkv = y + rows * D, *mixed = qkv + rows * all, *gate = mixed + rows * queries;
    float *score = gate + rows * F, *states = head ? y : out;
#pragma omp parallel
    {
        for (const Layer *layer = layers; layer < layers + shape->layers; layer++) {
#pragma omp for schedule(static)
            for (long b = 0; b < rows; b++) norm(x + b * D, layer->before, layer->before_epsilon, D, y + b * D);
            product(y, rows, layer->qkv, D, qkv, all, layer->qkv_bias, 0);
#pragma omp for schedule(static, 1)
            for (long b = 0; b < rows; b++)
                look_back(shape, layer, places[b], qkv + b * all, cos + (slot - starts[b]) * W, sin + (slot - starts[b]) * W,
                          starts[b], slot, score + b * seen, mixed + b * queries);
            product(mixed, rows, layer->out, queries, x, D, layer->out_bias, x);
#pragma omp for schedule(static)
            for (long b = 0; b < rows; b++) norm(x + b * D, layer->between, layer->between_epsilon, D, y + b * D);
            gated(layer, y, rows, D, gate, F);
            product(gate, rows, layer->down, F, x, D, layer->down_bias, x);
        }
#pragma omp for schedule(static)
        for (long b = 0; b < rows; b++) norm(x + b * D, last, epsilon, D, states + b * D);
        if (head) product(states, rows, head, D, out, outputs, 0, 0);
    }
}

/* ---- whole sequences, N tokens one after the other: what lies between a layer's products, and its gradients ---- */

/* dx = more + gradient along x; the weight's is added to what there is */
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

/* silu(gate) * up of rows that hold the one and then the other */
void gates(const float *gate_up, long rows, long feed, float *out)
{
    for (long i = 0; i < rows; i++) {
        const float *gate = gate_up + 2 * i * feed, *up = gate + feed;
#pragma omp simd
        for (long j = 0; j < feed; j++) out[i * feed + j] = gate[j] / (1 + exponential(-gate[j])) * up[j];
    }
}

/* Along both, where dy lies; what `gates` gave takes its place. */
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

/* Queries and keys out of rows of queries, keys and values: normed, where they are, and turned. */
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

/* d_turned is turned back on the way. */
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

/* ---- attention of each token to those before it in its sequence ---- */

enum { AHEAD = 12, NARROW = 2 * LANES, BLOCK = 4 * ROWS }; /* columns of a head's panels; queries looked at together */

/* Asks for some rows that will be looked at soon: they are too far from each other for the processor to foresee. What
   lies behind the end of what there is may be asked for too. */
static inline void expect(const float *x, long stride, long rows, long width)
{
    for (long i = 0; i < rows; i++)
        for (long w = 0; w < width; w += LANES) __builtin_prefetch(x + i * stride + w);
}

static inline long padded(long n) { return (n + NARROW - 1) / NARROW * NARROW; }

/* Scores of `all` slots, whole vectors of them, become shares of those seen, times their sum; its logarithm on the way.
   Each loop is over rows, so that many of these short reductions are under way at once. */
static void soften(
    float *score, long stride, int rows, int seen, int all, float scale, float *total, float *log_sums, long log_stride)
{
    float most[BLOCK];
    for (int r = 0; r < rows; r++) {
        float *own = score + r * stride, top = -INFINITY;
#pragma omp simd reduction(max : top)
        for (int s = 0; s < all; s++) {
            own[s] = s < seen + r ? own[s] : -INFINITY;
            top = own[s] > top ? own[s] : top;
        }
        most[r] = top;
    }
    for (int r = 0; r < rows; r++) {
        float *own = score + r * stride, top = most[r], sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int s = 0; s < all; s++) sum += own[s] = exponential((own[s] - top) * scale);
        total[r] = sum;
    }
    for (int r = 0; r < rows; r++) log_sums[r * log_stride] = most[r] * scale + logf(total[r]);
}

/* out (rows, columns) = a @ panels (+ out); `step` numbers from panel to panel */
static void narrow_product(
    const float *a, long down, long along, long rows, const float *panels, long step, long depth, float *out,
    long stride, long columns, int add)
{
    for (long c = 0; c < columns; c += NARROW, panels += step)
        for (long i = 0; i < rows; i += ROWS) {
            const float *from = a + i * down;
            float *to = out + i * stride + c;
            switch (least(rows - i, ROWS)) {
#define OF(n) case n: tile(n, 2, from, down, along, panels, depth, to, stride, columns - c, 0, add ? to : 0); break;
                OF_EVERY_HEIGHT
#undef OF
            }
        }
}

/* x (count, width) into panels: of rows, as the right side of y @ x; or of columns, of y @ transposed x */
static void pack(const float *x, long stride, long count, long width, float *panels)
{
    for (long c = 0; c < width; c += NARROW)
        for (long s = 0; s < count; s++, panels += NARROW) {
            expect(x + (s + AHEAD) * stride + c, stride, 1, NARROW);
            long some = least(NARROW, width - c);
            if (some == NARROW) memcpy(panels, x + s * stride + c, NARROW * sizeof(float));
            else
                for (long w = 0; w < NARROW; w++) panels[w] = w < some ? x[s * stride + c + w] : 0;
        }
}

/* A square of LANES rows, those beyond `count` zeros: halves change places, then quarters, ... */
static void transpose(const float *x, long stride, long count, float *out, long out_stride)
{
    vector row[LANES];
    expect(x + NARROW * stride, stride, LANES, LANES);
    for (long i = 0; i < LANES; i++) row[i] = i < count ? *(const vector *)(x + i * stride) : (vector){0};
#pragma GCC unroll 8
    for (int step = LANES / 2; step; step /= 2) {
        integers upper, lower;
        for (int j = 0; j < LANES; j++) {
            upper[j] = j & step ? LANES + j - step : j;
            lower[j] = j & step ? LANES + j : j + step;
        }
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++)
            if (!(i & step)) {
                vector one = row[i], other = row[i + step];
                row[i] = __builtin_shuffle(one, other, upper);
                row[i + step] = __builtin_shuffle(one, other, lower);
            }
    }
    for (long i = 0; i < LANES; i++) *(vector *)(out + i * out_stride) = row[i];
}

static void pack_transposed(const float *x, long stride, long count, long width, float *panels)
{
    for (long s = 0; s < count; s += NARROW, panels += NARROW * width) {
        long w = 0;
        for (; w + LANES <= width; w += LANES)
            for (long i = 0; i < NARROW; i += LANES)
                transpose(x + (s + i) * stride + w, stride, count - s - i, panels + w * NARROW + i, NARROW);
        for (; w < width; w++)
            for (long i = 0; i < NARROW; i++) panels[w * NARROW + i] = s + i < count ? x[(s + i) * stride + w] : 0;
    }
}

/* One reading: all its tokens, and what each thread works with */
typedef struct {
    const long *bounds; /* where sequences begin, and the last ends */
    const long *wanted; /* the tokens that go on after the last layer's attention, where these are not all */
    long sequences, rows, wanted_rows, each;
    const float *cos, *sin;
    float *scratch; /* `each` numbers a thread */
} Reading;

/* mixed (N, queries, width) and, for the way back, the logarithm of each softmax' sum */
static void attention(
    const Shape *shape, const Reading *run, const float *turned, const float *qkv, float scale, float *mixed, float *sums)
{
    long H = shape->queries, G = shape->keys, W = shape->width, group = H / G;
    long turned_row = (H + G) * W, qkv_row = (H + 2 * G) * W;
#pragma omp for collapse(2) schedule(dynamic)
    for (long q = 0; q < run->sequences; q++)
        for (long g = 0; g < G; g++) {
            long begin = run->bounds[q], L = run->bounds[q + 1] - begin, wide = padded(L);
            float *keys = run->scratch + omp_get_thread_num() * run->each, *values = keys + wide * W;
            float *score = values + L * padded(W), total[BLOCK];
            pack_transposed(turned + begin * turned_row + (H + g) * W, turned_row, L, W, keys);
            pack(qkv + begin * qkv_row + (H + G + g) * W, qkv_row, L, W, values);
            for (long h = g * group; h < (g + 1) * group; h++)
                for (long i = 0; i < L; i += BLOCK) {
                    long rows = least(BLOCK, L - i), end = i + rows, at = begin + i;
                    narrow_product(turned + at * turned_row + h * W, turned_row, 1, rows, keys, W * NARROW, W, score,
                                   wide, padded(end), 0);
                    soften(score, wide, rows, i + 1, padded(end), scale, total, sums + at * H + h, H);
                    float *out = mixed + (at * H + h) * W;
                    narrow_product(score, wide, 1, rows, values, L * NARROW, end, out, H * W, W, 0);
                    for (long r = 0; r < rows; r++)
#pragma omp simd
                        for (long w = 0; w < W; w++) out[r * H * W + w] *= 1 / total[r];
                }
        }
}

/* Gradients along turned queries and keys, and along the values in d_qkv, whose other parts stay untouched */
static void attention_back(
    const Shape *shape, const Reading *run, const float *turned, const float *qkv, float scale, const float *mixed,
    const float *sums, const float *d_mixed, float *d_turned, float *d_qkv)
{
    long H = shape->queries, G = shape->keys, W = shape->width, group = H / G;
    long turned_row = (H + G) * W, qkv_row = (H + 2 * G) * W, mixed_row = H * W;
#pragma omp for collapse(2) schedule(dynamic)
    for (long q = 0; q < run->sequences; q++)
        for (long g = 0; g < G; g++) {
            long begin = run->bounds[q], L = run->bounds[q + 1] - begin, wide = padded(L);
            float *across = run->scratch + omp_get_thread_num() * run->each, *values = across + wide * W;
            float *keys = values + wide * W, *share = keys + L * padded(W), *slope = share + BLOCK * wide;
            float *d_keys = slope + BLOCK * wide, *d_values = d_keys + L * W;
            float *queries = d_values + L * W, *wanted = queries + BLOCK * padded(W);
            const float *own_keys = turned + begin * turned_row + (H + g) * W;
            pack_transposed(own_keys, turned_row, L, W, across);
            pack(own_keys, turned_row, L, W, keys);
            pack_transposed(qkv + begin * qkv_row + (H + G + g) * W, qkv_row, L, W, values);
            memset(d_keys, 0, 2 * L * W * sizeof(float));
            for (long h = g * group; h < (g + 1) * group; h++)
                for (long i = 0; i < L; i += BLOCK) {
                    long rows = least(BLOCK, L - i), end = i + rows, at = begin + i;
                    const float *query = turned + at * turned_row + h * W, *dy = d_mixed + (at * H + h) * W;
                    expect(query + BLOCK * turned_row, turned_row, BLOCK, W);
                    expect(dy + BLOCK * mixed_row, mixed_row, BLOCK, W);
                    expect(mixed + ((at + BLOCK) * H + h) * W, mixed_row, BLOCK, W);
                    narrow_product(query, turned_row, 1, rows, across, W * NARROW, W, share, wide, padded(end), 0);
                    narrow_product(dy, mixed_row, 1, rows, values, W * NARROW, W, slope, wide, padded(end), 0);
                    float mean[BLOCK];
                    for (long r = 0; r < rows; r++) {
                        const float *y = mixed + ((at + r) * H + h) * W;
                        float dot = 0;
#pragma omp simd reduction(+ : dot)
                        for (long w = 0; w < W; w++) dot += dy[r * mixed_row + w] * y[w];
                        mean[r] = dot;
                    }
                    int all = padded(end);
                    for (int r = 0; r < rows; r++) {
                        float *p = share + r * wide, *d = slope + r * wide, middle = mean[r], sum = sums[(at + r) * H + h];
                        int seen = i + r + 1;
#pragma omp simd
                        for (int s = 0; s < all; s++) {
                            float one = s < seen ? exponential(p[s] * scale - sum) : 0;
                            p[s] = one;
                            d[s] = one * (d[s] - middle) * scale;
                        }
                    }
                    pack(query, turned_row, rows, W, queries);
                    pack(dy, mixed_row, rows, W, wanted);
                    narrow_product(slope, wide, 1, rows, keys, L * NARROW, end, d_turned + at * turned_row + h * W,
                                   turned_row, W, 0);
                    narrow_product(slope, 1, wide, end, queries, rows * NARROW, rows, d_keys, W, W, 1);
                    narrow_product(share, 1, wide, end, wanted, rows * NARROW, rows, d_values, W, W, 1);
                }
            for (long s = 0; s < L; s++) {
                float *to_keys = d_turned + (begin + s) * turned_row + (H + g) * W;
                float *to_values = d_qkv + (begin + s) * qkv_row + (H + G + g) * W;
                expect(to_keys + AHEAD * turned_row, 0, 1, W), expect(to_values + AHEAD * qkv_row, 0, 1, W);
                memcpy(to_keys, d_keys + s * W, W * sizeof(float));
                memcpy(to_values, d_values + s * W, W * sizeof(float));
            }
        }
}

/* ---- linear layers, whose weights are rows of inputs: by the library that PyTorch multiplies with. Inside a parallel
   region it takes one thread, and each thread has its own tokens, which its cache holds from one step to the next. ---- */

typedef void Product(
    const char *, const char *, const int *, const int *, const int *, const float *, const float *, const int *,
    const float *, const int *, const float *, float *, const int *);
static Product *library_product;

void multiply_with(void *found) { library_product = (Product *)found; }
long multiplies(void) { return library_product != 0; }

/* It counts columns first: out (n, m) = y (n, k) @ x (k, m), or of what is turned around, (+ out) */
static void multiply(
    char turn_x, char turn_y, int m, int n, int k, const float *x, int x_row, const float *y, int y_row, float add,
    float *out, int out_row)
{
    float one = 1;
    library_product(&turn_x, &turn_y, &m, &n, &k, &one, x, &x_row, y, &y_row, &add, out, &out_row);
}

typedef struct {
    const float *weight, *bias;
    float *d_weight, *d_bias;
    long inputs, outputs;
} Linear;

/* y = x @ transposed weight + bias + more; rows of y are `stride` numbers apart, all others follow each other */
static void linear(Linear own, const float *x, long rows, const float *more, float *y, long stride)
{
    int begun = own.bias || more;
    for (long i = 0; i < rows && begun; i++)
#pragma omp simd
        for (long o = 0; o < own.outputs; o++)
            y[i * stride + o] = (own.bias ? own.bias[o] : 0) + (more ? more[i * own.outputs + o] : 0);
    multiply('T', 'N', own.outputs, rows, own.inputs, own.weight, own.inputs, x, own.inputs, begun, y, stride);
}

/* dx = dy @ weight (+ dx) */
static void linear_back(Linear own, const float *dy, long stride, long rows, int add, float *dx)
{
    multiply('N', 'N', own.inputs, rows, own.outputs, own.weight, own.inputs, dy, stride, add, dx, own.inputs);
}

/* Inside a parallel region: each thread takes some outputs, of all tokens */
static void linear_slopes(Linear own, const float *x, const float *dy, long stride, long rows)
{
    long me = omp_get_thread_num(), all = omp_get_num_threads(), pieces = (own.outputs + LANES - 1) / LANES;
    long from = pieces * me / all * LANES, to = least(pieces * (me + 1) / all * LANES, own.outputs);
    if (from >= to) return;
    multiply('N', 'T', own.inputs, to - from, rows, x, own.inputs, dy + from, stride, 0, own.d_weight + from * own.inputs,
             own.inputs);
    if (!own.d_bias) return;
    memset(own.d_bias + from, 0, (to - from) * sizeof(float));
    for (long i = 0; i < rows; i++)
#pragma omp simd
        for (long o = from; o < to; o++) own.d_bias[o] += dy[i * stride + o];
}

/* ---- all layers, forwards and backwards ---- */

/* Some heads of each token, whose rows are `stride` numbers apart, into the slot of the row that it has in `held` */
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

/* What a layer leaves behind for its way back, row after row; without one, `gate_up` is nowhere */
typedef struct {
    float *x, *scale, *qkv, *turned, *head_scale, *mixed, *sums, *middle, *middle_scale, *gate_up;
} Kept;

/* Where the gradients of a layer's weights belong */
typedef struct {
    float *before, *qkv, *qkv_bias, *head_norm, *out, *out_bias, *between;
    float *gate, *gate_bias, *up, *up_bias, *down, *down_bias;
} Slopes;

/* Gradients along what a layer makes of its tokens, and what is made anew on the way; `out` may be `x`, and `some_mixed`
   `mixed`, if all tokens are wanted. Norms are what each thread adds up for itself. */
typedef struct {
    float *out, *x, *middle, *normed, *gated, *gate_up, *some_mixed, *mixed, *turned, *qkv, *norms;
} Back;

enum { TOKENS = 256 }; /* that a thread takes through a layer at a time */

/* As many for each thread, none above TOKENS */
static long blocks(long rows)
{
    long all = omp_get_max_threads();
    return least(rows, (rows + all * TOKENS - 1) / (all * TOKENS) * all);
}

/* How many numbers a thread needs for some tokens in sequences of up to so many */
long scratch_size(const Shape *shape, long rows, long longest)
{
    long W = shape->width, L = padded(longest), some = least(rows, TOKENS);
    long for_tokens = some * (shape->hidden + 3 * shape->feed);
    long for_attention = L * W * 2 + L * padded(W) + 2 * BLOCK * L + 2 * longest * W + 2 * BLOCK * padded(W);
    return for_tokens > for_attention ? for_tokens : for_attention;
}

static void rescaled(const float *x, const float *weight, const float *scale, long rows, long width, float *y)
{
    for (long i = 0; i < rows; i++)
#pragma omp simd
        for (long j = 0; j < width; j++) y[i * width + j] = x[i * width + j] * scale[i] * weight[j];
}

/* Some tokens to their queries, keys and values */
static void before_attention(const Shape *shape, const Layer *w, const Kept *k, const Reading *run, long at, long rows, float *y)
{
    long D = shape->hidden, W = shape->width, heads = shape->queries + shape->keys, all = (heads + shape->keys) * W;
    for (long i = at; i < at + rows; i++)
        k->scale[i] = norm(k->x + i * D, w->before, w->before_epsilon, D, y + (i - at) * D);
    linear((Linear){w->qkv, w->qkv_bias, 0, 0, D, all}, y, rows, 0, k->qkv + at * all, all);
    turns(shape, k->qkv + at * all, w->head_norm, w->head_epsilon, run->cos + at * W, run->sin + at * W, rows,
          k->turned + at * heads * W, k->head_scale + at * heads);
}

/* What they have attended to, to the layer's end */
static void after_attention(const Shape *shape, const Layer *w, const Kept *k, long at, long rows, float *scratch, float *out)
{
    long D = shape->hidden, F = shape->feed, mixed = shape->queries * shape->width;
    float *z = scratch, *gated = z + rows * D, *gate_up = k->gate_up ? k->gate_up + at * 2 * F : gated + rows * F;
    linear((Linear){w->out, w->out_bias, 0, 0, mixed, D}, k->mixed + at * mixed, rows, k->x + at * D, k->middle + at * D, D);
    for (long i = at; i < at + rows; i++)
        k->middle_scale[i] = norm(k->middle + i * D, w->between, w->between_epsilon, D, z + (i - at) * D);
    linear((Linear){w->gate, w->gate_bias, 0, 0, D, F}, z, rows, 0, gate_up, 2 * F);
    linear((Linear){w->up, w->up_bias, 0, 0, D, F}, z, rows, 0, gate_up + F, 2 * F);
    gates(gate_up, rows, F, gated);
    linear((Linear){w->down, w->down_bias, 0, 0, F, D}, gated, rows, k->middle + at * D, out + at * D, D);
}

/* Inside a parallel region: rows that are wanted, to where they follow each other, or back to where they were */
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

/* From the first layer's x to `out`, which may be where every layer's x is. What the last layer keeps of the tokens that
   are wanted lies behind all others in `kept`. */
void forwards(const Shape *shape, const Layer *layers, const Kept *kept, const Reading *run, float *out)
{
    long count = blocks(run->rows);
#pragma omp parallel
    for (long l = 0; l < shape->layers; l++) {
        const Layer *w = layers + l;
        const Kept *k = kept + l;
        float *scratch = run->scratch + omp_get_thread_num() * run->each;
#pragma omp for schedule(static)
        for (long b = 0; b < count; b++) {
            long at = run->rows * b / count, end = run->rows * (b + 1) / count;
            before_attention(shape, w, k, run, at, end - at, scratch);
        }
        attention(shape, run, k->turned, k->qkv, w->scale, k->mixed, k->sums);
        int last = l + 1 == shape->layers, fewer = last && run->wanted_rows < run->rows;
        if (fewer) {
            gather(k->x, run, shape->hidden, k[1].x);
            gather(k->mixed, run, shape->queries * shape->width, k[1].mixed);
        }
        long rows = fewer ? run->wanted_rows : run->rows, some = blocks(rows);
#pragma omp for schedule(static)
        for (long b = 0; b < some; b++) {
            long at = rows * b / some, end = rows * (b + 1) / some;
            after_attention(shape, w, fewer ? k + 1 : k, at, end - at, scratch, last ? out : k[1].x);
        }
    }
}

typedef struct {
    Linear qkv, out, gate, up, down;
} Linears;

static Linears linears(const Shape *shape, const Layer *w, const Slopes *d)
{
    long D = shape->hidden, F = shape->feed, mixed = shape->queries * shape->width;
    return (Linears){
        {w->qkv, w->qkv_bias, d->qkv, d->qkv_bias, D, mixed + 2 * shape->keys * shape->width},
        {w->out, w->out_bias, d->out, d->out_bias, mixed, D},
        {w->gate, w->gate_bias, d->gate, d->gate_bias, D, F},
        {w->up, w->up_bias, d->up, d->up_bias, D, F},
        {w->down, w->down_bias, d->down, d->down_bias, F, D},
    };
}

/* From what the layer gave to what follows its attention, and to what attention gave */
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

/* To what went into the layer; `more` is the gradient along it that passed attention by. */
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

/* Inside a parallel region: what threads have added up for themselves, which starts anew */
static void collect(float *parts, long size, long from, long count, float *to)
{
#pragma omp for schedule(static)
    for (long i = 0; i < count; i++) {
        float sum = 0;
        for (long t = 0; t < omp_get_num_threads(); t++) sum += parts[t * size + from + i], parts[t * size + from + i] = 0;
        if (to) to[i] = sum;
    }
}

/* From `out`, along what the last layer gave, to `x`, along the embeddings. `norms` are zeros. */
void backwards(
    const Shape *shape, const Layer *layers, const Kept *kept, const Reading *run, const Slopes *slopes, const Back *back)
{
    long D = shape->hidden, W = shape->width, heads = shape->queries + shape->keys, size = 2 * D + heads * W;
    long count = blocks(run->rows);
#pragma omp parallel
    for (long l = shape->layers - 1; l >= 0; l--) {
        const Layer *w = layers + l;
        const Linears own = linears(shape, w, slopes + l);
        float *scratch = run->scratch + omp_get_thread_num() * run->each;
        float *d_before = back->norms + omp_get_thread_num() * size, *d_between = d_before + D;
        int fewer = l + 1 == shape->layers && run->wanted_rows < run->rows;
        const Kept *k = kept + l, *after = fewer ? k + 1 : k;
        Back d = *back;
        if (!fewer) d.out = d.x, d.some_mixed = d.mixed;
        long rows = fewer ? run->wanted_rows : run->rows, some = blocks(rows);
#pragma omp for schedule(static)
        for (long b = 0; b < some; b++) {
            long at = rows * b / some, end = rows * (b + 1) / some;
            after_attention_back(shape, w, after, &own, &d, d_between, at, end - at, scratch);
        }
        linear_slopes(own.down, d.gated, d.out, D, rows);
        linear_slopes(own.gate, d.normed, d.gate_up, 2 * shape->feed, rows);
        linear_slopes(own.up, d.normed, d.gate_up + shape->feed, 2 * shape->feed, rows);
        linear_slopes(own.out, after->mixed, d.middle, D, rows);
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
        linear_slopes(own.qkv, d.normed, d.qkv, own.qkv.outputs, run->rows);
        collect(back->norms, size, 0, D, slopes[l].before);
        collect(back->norms, size, D, D, slopes[l].between);
        collect(back->norms, size, 2 * D, heads * W, slopes[l].head_norm);
    }
}

/* ---- KL(p || q) of logits, row by row, and its slope along p's ---- */

enum { SUMMED = 1024 }; /* numbers that are added up in fp32, before their sum joins others in double */

static float highest(const float *x, long width)
{
    float most = -INFINITY;
#pragma omp simd reduction(max : most)
    for (long v = 0; v < width; v++) most = x[v] > most ? x[v] : most;
    return most;
}

static float mass(const float *x, float scale, float log_sum, const long *entries, long count)
{
    float total = 0;
    for (long k = 0; k < count; k++) total += expf(x[entries[k]] * scale - log_sum);
    return total;
}

/* A row of `told` is: the KL, p's entropy, the log-probabilities of the token under p and q, and how much of each lies
   on the stops. The slope may be the student's own place, or nowhere. */
void reverse_kl(
    const float *student, const float *teacher, float scale, const long *tokens, const long *stops, long n_stops,
    long rows, long width, float *slope, float *told)
{
#pragma omp parallel for schedule(static)
    for (long i = 0; i < rows; i++) {
        const float *s = student + i * width, *t = teacher + i * width;
        float s_most = highest(s, width), t_most = highest(t, width);
        double s_total = 0, t_total = 0, scores = 0, gaps = 0;
        for (long from = 0; from < width; from += SUMMED) {
            float s_some = 0, t_some = 0, scores_some = 0, gaps_some = 0;
#pragma omp simd reduction(+ : s_some, t_some, scores_some, gaps_some)
            for (long v = from; v < least(from + SUMMED, width); v++) {
                float a = (s[v] - s_most) * scale, b = (t[v] - t_most) * scale, share = exponential(a);
                s_some += share;
                t_some += exponential(b);
                scores_some += share * a;
                gaps_some += share * (a - b);
            }
            s_total += s_some, t_total += t_some, scores += scores_some, gaps += gaps_some;
        }
        double s_log = log(s_total), t_log = log(t_total), mean_gap = gaps / s_total;
        float p_sum = s_most * scale + s_log, q_sum = t_most * scale + t_log, *own = told + 6 * i;
        own[0] = mean_gap - s_log + t_log;
        own[1] = s_log - scores / s_total;
        own[2] = s[tokens[i]] * scale - p_sum;
        own[3] = t[tokens[i]] * scale - q_sum;
        own[4] = mass(s, scale, p_sum, stops, n_stops);
        own[5] = mass(t, scale, q_sum, stops, n_stops);
        if (!slope) continue;
        float *d = slope + i * width, share = scale / s_total, middle = mean_gap;
#pragma omp simd
        for (long v = 0; v < width; v++) {
            float a = (s[v] - s_most) * scale, b = (t[v] - t_most) * scale;
            d[v] = share * exponential(a) * (a - b - middle);
        }
    }
}

/* ---- the token of each row where the running sum of its probabilities passes a number ---- */

enum { PIECE = 512 }; /* entries whose sum is known before it is looked where among them the number lies */

/* Below fp32's smallest probability there is none: what is impossible is never taken. */
static inline float likelihood(float x) { return x < -87.0f ? 0 : exponential(x); }

#define BELOW_ONE (1 - 1e-12)

/* Which of some entries; their sum, as it was made here, is not left behind by rounding elsewhere. */
static long passed(const float *x, float most, float scale, long count, double left)
{
    float share[PIECE];
    double total = 0;
#pragma omp simd reduction(+ : total)
    for (long v = 0; v < count; v++) total += share[v] = likelihood((x[v] - most) * scale);
    left = fmin(left, total * BELOW_ONE);
    long last = 0;
    for (long v = 0; v < count && left >= 0; v++)
        if (share[v] > 0) last = v, left -= share[v];
    return last;
}

/* Without numbers, the most likely token. */
void draw(
    const float *logits, const double *numbers, float scale, long rows, long width, long *tokens, float *log_probs)
{
#pragma omp parallel for schedule(static)
    for (long i = 0; i < rows; i++) {
        const float *x = logits + i * width;
        float most = highest(x, width), sums[(width + PIECE - 1) / PIECE];
        double total = 0;
        for (long from = 0; from < width; from += PIECE) {
            float some = 0;
#pragma omp simd reduction(+ : some)
            for (long v = from; v < least(from + PIECE, width); v++) some += likelihood((x[v] - most) * scale);
            total += sums[from / PIECE] = some;
        }
        if (numbers) {
            double left = fmin(numbers[i], BELOW_ONE) * total;
            long piece = 0, last = (width - 1) / PIECE;
            while (piece < last && left >= sums[piece]) left -= sums[piece++];
            while (piece > 0 && sums[piece] <= 0) piece--; /* rounding led past the last one that can be */
            long from = piece * PIECE;
            tokens[i] = from + passed(x + from, most, scale, least(PIECE, width - from), left);
        } else
            for (tokens[i] = 0; tokens[i] < width - 1 && x[tokens[i]] < most;) tokens[i]++;
        log_probs[i] = (x[tokens[i]] - most) * scale - log(total);
    }
}

/* ---- a token a step for some rows, each from its last token on, until they have ended ---- */

/* A row that goes on: its last token, its first slot, the place of its keys and values, and which of all rows it is */
typedef struct {
    long *token, *start, *place, *which;
} Rows;

/* A row that ends leaves, those behind it move up. Numbers, tokens and log-probabilities are (all rows, limit), and what
   is written next is number `step` of each. How many steps were made is given back; `left` is how many rows go on. */
long write_on(
    const Shape *shape, const Layer *layers, long rows, const Rows *own, const float *embeddings, const float *cos,
    const float *sin, long slot, const float *last, float epsilon, const float *head, long outputs, const double *numbers,
    float scale, const long *stops, long n_stops, long step, long steps, long limit, long *tokens, float *log_probs,
    float *x, float *logits, double *drawn, float *told, float *scratch, long *left)
{
    long D = shape->hidden, made = 0;
    for (; made < steps && rows; made++, step++, slot++) {
        for (long b = 0; b < rows; b++) {
            memcpy(x + b * D, embeddings + own->token[b] * D, D * sizeof(float));
            if (numbers) drawn[b] = numbers[own->which[b] * limit + step];
        }
        decode(shape, layers, rows, x, cos, sin, own->start, own->place, slot, last, epsilon, head, outputs, logits, scratch);
        draw(logits, numbers ? drawn : 0, scale, rows, outputs, own->token, told);
        long going = 0;
        for (long b = 0; b < rows; b++) {
            long at = own->which[b] * limit + step, token = own->token[b], ended = 0;
            tokens[at] = token, log_probs[at] = told[b];
            for (long k = 0; k < n_stops; k++) ended |= token == stops[k];
            own->token[going] = token, own->start[going] = own->start[b];
            own->place[going] = own->place[b], own->which[going] = own->which[b];
            going += !ended;
        }
        rows = going;
    }
    *left = rows;
    return made;
}
