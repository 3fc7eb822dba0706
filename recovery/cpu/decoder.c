/* Decode one more token a row through Llama-like layers, or several. */

#include "products.h"

long panel_width(void) { return PANEL; }

#if defined(__AVX512BF16__)
long multiplies_bf16(void) { return 1; }
#else
long multiplies_bf16(void) { return 0; }
#endif

/* Lay a weight (outputs, words) out in panels. */
void lay_out(const float *weight, long outputs, long words, float *panels)
{
#pragma omp parallel for schedule(static)
    for (long c = 0; c < outputs; c += PANEL) pack_panel(weight, words, outputs, words, PANEL, c, panels + c * words);
}

/* Inside a parallel region: the left side of a product in the weight's type */
static const float *as_weight(int half, const float *a, long count, float *rounded)
{
    if (!half) return a;
    bf16 *to = (bf16 *)rounded;
#pragma omp for schedule(static)
    for (long i = 0; i < count; i++) to[i] = to_bf16(a[i]);
    return rounded;
}

static void panel_product(
    int half, const float *a, long rows, const float *panel, long depth, float *out, long stride, long columns,
    const float *bias, const float *more)
{
    for (; rows > 0; rows -= ROWS, a += ROWS * depth, out += ROWS * stride, more += more ? ROWS * stride : 0)
        switch (2 * least(rows, ROWS) + half) {
#define WITH(n, half) case 2 * n + half: tile(half, n, VECTORS, a, depth, 1, panel, depth, out, stride, columns, bias, more); break;
#define OF(n) WITH(n, 0) WITH(n, 1)
            OF_EVERY_HEIGHT
#undef OF
#undef WITH
        }
}

/* out = a @ weight + bias + more, inside a parallel region: each thread takes its panels */
static void product(
    int half, const float *a, long rows, const float *weight, long inputs, float *out, long columns, const float *bias,
    const float *more)
{
    long depth = half ? inputs / 2 : inputs;
#pragma omp for schedule(static)
    for (long c = 0; c < columns; c += PANEL)
        panel_product(half, a, rows, weight + c * depth, depth, out + c, columns, least(PANEL, columns - c),
                      bias ? bias + c : 0, more ? more + c : 0);
}

/* ---- attention of one query over the cache ---- */

/* The sums of LANES vectors: each step swaps halves of two vectors and adds them. */
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

/* score = keys @ query * scale, up to a whole vector; `vectors` is the head width in vectors, or 0 for other widths */
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
    enum { CHAINS = 4 }; /* of additions that do not depend on each other */
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

/* Attention of one query over some slots; `score` has room for whole vectors of them. */
__attribute__((always_inline)) static inline void attend_as_wide(
    const int vectors, const float *query, const float *keys, const float *values, long count, long width, float scale,
    float *score, float *out)
{
    long all = whole_vectors(count);
    float total = 0;
    match(vectors, query, keys, count, width, scale, score);
    for (long s = count; s < all; s++) score[s] = -INFINITY;
    float most = highest(score, all);
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
        OF(1) OF(2) OF(4) OF(8) OF(16)
#undef OF
        default: attend_as_wide(0, query, keys, values, count, width, scale, score, out);
    }
}

/* ---- all layers ---- */

static void turn(const Layer *layer, long head, float *own, const float *cos, const float *sin, long W)
{
    if (layer->head_norm) norm(own, layer->head_norm + head * W, layer->head_epsilon, W, own);
    rotate(own, cos, sin, W);
}

/* Norm and rotate key head g of a token and the queries that see it, write keys and values into the slot, attend into
   `mixed`. `own` and `mixed` are all heads of the token. */
static void look_back(
    const Shape *shape, const Layer *layer, long place, long g, float *own, const float *cos, const float *sin, long first,
    long slot, float *score, float *mixed)
{
    long W = shape->width, group = shape->queries / shape->keys, key = shape->queries + g, value = key + shape->keys;
    long start = place * layer->row_stride + g * layer->head_stride;
    float *keys = layer->keys + start, *values = layer->values + start;
    turn(layer, key, own + key * W, cos, sin, W);
    memcpy(keys + slot * W, own + key * W, W * sizeof(float));
    memcpy(values + slot * W, own + value * W, W * sizeof(float));
    for (long h = g * group; h < (g + 1) * group; h++) {
        turn(layer, h, own + h * W, cos, sin, W);
        attend(own + h * W, keys + first * W, values + first * W, slot + 1 - first, W, layer->scale, score, mixed + h * W);
    }
}

/* gate = silu(x @ gate weight) * (x @ up weight), a panel and a few rows at a time */
static void gated(int half, const Layer *layer, const float *x, long rows, long inputs, float *gate, long columns)
{
    enum { AT_ONCE = 8 * ROWS };
    long depth = half ? inputs / 2 : inputs;
#pragma omp for schedule(static)
    for (long c = 0; c < columns; c += PANEL) {
        long n = least(PANEL, columns - c);
        for (long b = 0; b < rows; b += AT_ONCE) {
            float up[AT_ONCE * PANEL], *own = gate + b * columns + c;
            long some = least(AT_ONCE, rows - b);
            panel_product(half, x + b * depth, some, layer->gate + c * depth, depth, own, columns, n,
                          layer->gate_bias ? layer->gate_bias + c : 0, 0);
            panel_product(half, x + b * depth, some, layer->up + c * depth, depth, up, PANEL, n,
                          layer->up_bias ? layer->up_bias + c : 0, 0);
            for (long i = 0; i < some; i++)
#pragma omp simd
                for (long j = 0; j < n; j++)
                    own[i * columns + j] *= up[i * PANEL + j] / (1 + exponential(-own[i * columns + j]));
        }
    }
}

/* x (rows, hidden) holds the embeddings of the tokens that go into `slot`, and then the last layer's output. A row's keys
   and values are at its place, from its slot in `starts` on, which has position 0 in `cos` and `sin`. `out` is (rows, outputs)
   with a head, else the normed x. scratch: rows * (hidden + (2 queries + 2 keys) * width + feed) floats, for bf16 as often the
   widest left side of a product, and threads * (slot + 17). */
void decode(
    const Shape *shape, const Layer *layers, long rows, float *x, const float *cos, const float *sin, const long *starts,
    const long *places, long slot, const float *last, float epsilon, const float *head, long outputs, float *out,
    float *scratch)
{
    long D = shape->hidden, W = shape->width, F = shape->feed, queries = shape->queries * W;
    long all = queries + 2 * shape->keys * W, seen = whole_vectors(slot + 1);
    float *y = scratch, *qkv = y + rows * D, *mixed = qkv + rows * all, *gate = mixed + rows * queries;
    float *score = gate + rows * F, *rounded = score + omp_get_max_threads() * seen, *states = head ? y : out;
    int half = shape->half;
#pragma omp parallel
    {
        for (const Layer *layer = layers; layer < layers + shape->layers; layer++) {
#pragma omp for schedule(static)
            for (long b = 0; b < rows; b++) norm(x + b * D, layer->before, layer->before_epsilon, D, y + b * D);
            product(half, as_weight(half, y, rows * D, rounded), rows, layer->qkv, D, qkv, all, layer->qkv_bias, 0);
#pragma omp for collapse(2) schedule(static, 1)
            for (long b = 0; b < rows; b++)
                for (long g = 0; g < shape->keys; g++) {
                    long turns = (slot - starts[b]) * W;
                    look_back(shape, layer, places[b], g, qkv + b * all, cos + turns, sin + turns, starts[b], slot,
                              score + omp_get_thread_num() * seen, mixed + b * queries);
                }
            product(half, as_weight(half, mixed, rows * queries, rounded), rows, layer->out, queries, x, D, layer->out_bias, x);
#pragma omp for schedule(static)
            for (long b = 0; b < rows; b++) norm(x + b * D, layer->between, layer->between_epsilon, D, y + b * D);
            gated(half, layer, as_weight(half, y, rows * D, rounded), rows, D, gate, F);
            product(half, as_weight(half, gate, rows * F, rounded), rows, layer->down, F, x, D, layer->down_bias, x);
        }
#pragma omp for schedule(static)
        for (long b = 0; b < rows; b++) norm(x + b * D, last, epsilon, D, states + b * D);
        if (head) product(half, as_weight(half, states, rows * D, rounded), rows, head, D, out, outputs, 0, 0);
    }
}

/* ---- several tokens a row, decoded and drawn ---- */

/* Rows being decoded: last token, first slot, place in the cache, and index among all rows of the batch */
typedef struct {
    long *token, *start, *place, *which;
} Rows;

static void embed(const Shape *shape, const float *embeddings, long token, float *x)
{
    long D = shape->hidden;
    if (shape->half) {
        const bf16 *numbers = (const bf16 *)embeddings + token * D;
        for (long i = 0; i < D; i++) x[i] = from_bf16(numbers[i]);
    } else {
        memcpy(x, embeddings + token * D, D * sizeof(float));
    }
}

/* Drop each row at its stop token; later ones move up. Numbers, tokens and log-probabilities are (all rows, limit), and the
   next column is `step`. Returns the steps made; `left` is the number of remaining rows. */
long write_ahead(
    const Shape *shape, const Layer *layers, long rows, const Rows *own, const float *embeddings, const float *cos,
    const float *sin, long slot, const float *last, float epsilon, const float *head, long outputs, const double *numbers,
    float scale, const long *stops, long n_stops, long step, long steps, long limit, long *tokens, float *log_probs,
    float *x, float *logits, double *drawn, float *told, float *scratch, long *left)
{
    long D = shape->hidden, made = 0;
    for (; made < steps && rows; made++, step++, slot++) {
        for (long b = 0; b < rows; b++) {
            embed(shape, embeddings, own->token[b], x + b * D);
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
