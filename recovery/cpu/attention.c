/* Causal attention within each sequence, forwards and backwards; called by all threads of a parallel region. */

#include "products.h"

enum { BLOCK = 4 * ROWS }; /* queries computed together */

static inline long padded(long n) { return (n + NARROW - 1) / NARROW * NARROW; }

/* Turn scores of `all` slots (whole vectors) into unnormalised probabilities of the visible ones; return each row's total
   and the logarithm of its softmax denominator. Each loop runs over rows, so that many short reductions overlap. */
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

/* Floats of scratch memory a thread needs for sequences of at most `longest` tokens */
long attention_size(const Shape *shape, long longest)
{
    long W = shape->width, L = padded(longest);
    return L * W * 2 + L * padded(W) + 2 * BLOCK * L + 2 * longest * W + 2 * BLOCK * padded(W);
}

/* Lay out one head's keys or values without gaps: those of the first `before` tokens, then those from `rest` on. */
static void lay_out(const float *first, const float *rest, long stride, long before, long own, long width, float *out)
{
    for (long s = 0; s < before; s++) memcpy(out + s * width, first + s * stride, width * sizeof(float));
    for (long s = 0; s < own; s++) memcpy(out + (before + s) * width, rest + s * stride, width * sizeof(float));
}

/* mixed (N, queries, width) and, for the backward pass, the logarithm of each softmax denominator. All sequences but the first
   see its `common` tokens before their own. */
void attention(
    const Shape *shape, const Reading *run, const float *turned, const float *qkv, float scale, float *mixed, float *sums)
{
    long H = shape->queries, G = shape->keys, W = shape->width, group = H / G;
    long turned_row = (H + G) * W, qkv_row = (H + 2 * G) * W;
    long parts = 1 + 4 * omp_get_num_threads() / (run->sequences * G + 1); /* of a sequence's blocks of queries */
#pragma omp for collapse(2) schedule(dynamic)
    for (long q = 0; q < run->sequences; q++)
        for (long item = 0; item < G * parts; item++) {
            long g = item / parts, part = item % parts;
            long begin = run->bounds[q], own = run->bounds[q + 1] - begin, before = q ? run->common : 0, L = before + own;
            if (part * BLOCK >= own) continue;
            long wide = padded(L), key_row = turned_row, value_row = qkv_row;
            float *keys = run->scratch + omp_get_thread_num() * run->each, *values = keys + wide * W;
            float *score = values + L * padded(W), total[BLOCK];
            const float *first_key = turned + (H + g) * W, *key = first_key + begin * turned_row;
            const float *first_value = qkv + (H + G + g) * W, *value = first_value + begin * qkv_row;
            if (before) {
                float *all_keys = score + BLOCK * wide, *all_values = all_keys + L * W;
                lay_out(first_key, key, turned_row, before, own, W, all_keys);
                lay_out(first_value, value, qkv_row, before, own, W, all_values);
                key = all_keys, value = all_values, key_row = value_row = W;
            }
            pack_transposed(key, key_row, L, W, keys);
            pack(value, value_row, L, W, values);
            for (long h = g * group; h < (g + 1) * group; h++)
                for (long i = part * BLOCK; i < own; i += parts * BLOCK) {
                    long rows = least(BLOCK, own - i), end = before + i + rows, at = begin + i;
                    narrow_product(0, turned + at * turned_row + h * W, turned_row, 1, rows, keys, W * NARROW, W, score,
                                   wide, padded(end), 0);
                    soften(score, wide, rows, before + i + 1, padded(end), scale, total, sums + at * H + h, H);
                    float *out = mixed + (at * H + h) * W;
                    narrow_product(0, score, wide, 1, rows, values, L * NARROW, end, out, H * W, W, 0);
                    for (long r = 0; r < rows; r++)
#pragma omp simd
                        for (long w = 0; w < W; w++) out[r * H * W + w] *= 1 / total[r];
                }
        }
}

/* Gradients of rotated queries and keys, and of the values in d_qkv, whose other parts are left alone */
void attention_back(
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
                    narrow_product(0, query, turned_row, 1, rows, across, W * NARROW, W, share, wide, padded(end), 0);
                    narrow_product(0, dy, mixed_row, 1, rows, values, W * NARROW, W, slope, wide, padded(end), 0);
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
                    narrow_product(0, slope, wide, 1, rows, keys, L * NARROW, end, d_turned + at * turned_row + h * W,
                                   turned_row, W, 0);
                    narrow_product(0, slope, 1, wide, end, queries, rows * NARROW, rows, d_keys, W, W, 1);
                    narrow_product(0, share, 1, wide, end, wanted, rows * NARROW, rows, d_values, W, W, 1);
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
