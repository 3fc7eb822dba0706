/* One more token a row through Llama-like layers, or so many until a row has ended. */

#include "products.h"

long panel_width(void) { return PANEL; }

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

/* ---- one query over what is remembered ---- */

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
   row are at its place, from its first slot on, in `starts`; `cos` and `sin` begin with the position of that. Given a head,
   `out` is (rows, outputs), else the normed x. scratch holds rows * (hidden + (2 queries + 2 keys) * width + feed + slot + 17) numbers. */
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

/* ---- a token a step for some rows, each from its last token on, until they have ended ---- */

/* A row that goes on: its last token, its first slot, the place of its keys and values, and which of all rows it is */
typedef struct {
    long *token, *start, *place, *which;
} Rows;

/* A row that ends leaves, those behind it move up. Numbers, tokens and log-probabilities are (all rows, limit), and what
   is written next is number `step` of each. How many steps were made is given back; `left` is how many rows go on. */
long write_ahead(
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
