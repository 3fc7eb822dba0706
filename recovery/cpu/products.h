/* Matrix products by tiles: the right side is laid out in panels of some columns, row after row, padded with zeros.

   Where `half` is set, each word of four bytes holds two bf16 numbers that follow each other along the sum. */

#include "native.h"
#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif

enum { PANEL = LANES * VECTORS, NARROW = 2 * LANES }; /* columns of a panel: decoder.c's weights, all others */
enum { AHEAD = 12 }; /* rows to prefetch ahead */

typedef union {
    float number;
    uint32_t bits;
} Number;

typedef uint16_t bf16 __attribute__((may_alias));

static inline float from_bf16(bf16 bits) { return (Number){.bits = (uint32_t)bits << 16}.number; }

static inline bf16 to_bf16(float x)
{
    uint32_t bits = (Number){.number = x}.bits;
    return x != x ? 0x7fc0 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16; /* to the nearest, ties to even */
}

static inline void round_row(const float *x, long width, bf16 *to)
{
#pragma omp simd
    for (long i = 0; i < width; i++) to[i] = to_bf16(x[i]);
}

/* sum += a * w, word by word; without the instruction there is no bf16 */
__attribute__((always_inline)) static inline void multiply_add(const int half, vector *sum, float a, vector w)
{
#if defined(__AVX512BF16__)
    if (half) *sum = (vector)_mm512_dpbf16_ps((__m512)*sum, (__m512bh)_mm512_set1_ps(a), (__m512bh)w);
    else
#endif
        *sum += a * w;
}

/* out = a @ panel + bias + more, unrolled for constant rows and vectors; a[i, k] is at i * down + k * along */
__attribute__((always_inline)) static inline void tile(
    const int half, const int rows, const int vectors, const float *a, long down, long along, const float *panel, long depth, float *out,
    long stride, long columns, const float *bias, const float *more)
{
    vector sum[ROWS][VECTORS] = {0};
    for (long k = 0; k < depth; k++, panel += vectors * LANES)
        for (int i = 0; i < rows; i++)
            for (int j = 0; j < vectors; j++)
                multiply_add(half, &sum[i][j], a[i * down + k * along], *(const vector *)(panel + j * LANES));
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
#elif defined(__AVX2__)
#define OF_EVERY_HEIGHT OF(1) OF(2) OF(3) OF(4) OF(5) OF(6)
#else
#define OF_EVERY_HEIGHT OF(1) OF(2) OF(3) OF(4)
#endif

/* Prefetch rows whose stride is too large for the processor to predict; addresses past the end are harmless. */
static inline void expect(const float *x, long stride, long rows, long width)
{
    for (long i = 0; i < rows; i++)
        for (long w = 0; w < width; w += LANES) __builtin_prefetch(x + i * stride + w);
}

/* out (rows, columns) = a @ panels (+ out); panels are `step` floats apart */
static inline void narrow_product(
    int half, const float *a, long down, long along, long rows, const float *panels, long step, long depth, float *out,
    long stride, long columns, int add)
{
    for (long c = 0; c < columns; c += NARROW, panels += step)
        for (long i = 0; i < rows; i += ROWS) {
            const float *from = a + i * down;
            float *to = out + i * stride + c;
            switch (2 * least(rows - i, ROWS) + half) {
#define WITH(n, half) case 2 * n + half: tile(half, n, 2, from, down, along, panels, depth, to, stride, columns - c, 0, add ? to : 0); break;
#define OF(n) WITH(n, 0) WITH(n, 1)
                OF_EVERY_HEIGHT
#undef OF
#undef WITH
            }
        }
}

/* Lay x (count, width) out in panels: as the right side of y @ x, or (transposed) of y @ x^T */
static inline void pack(const float *x, long stride, long count, long width, float *panels)
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

/* Lay pairs of bf16 rows out as `pack` does rows: a word of a panel holds both numbers of a column */
static inline void pack_pairs(const bf16 *x, long stride, long pairs, long width, float *panels)
{
    for (long c = 0; c < width; c += NARROW)
        for (long s = 0; s < pairs; s++, panels += NARROW) {
            const bf16 *one = x + 2 * s * stride + c, *other = one + stride;
            Number *words = (Number *)panels;
            long some = least(NARROW, width - c);
#pragma omp simd
            for (long w = 0; w < some; w++) words[w].bits = one[w] | (uint32_t)other[w] << 16;
            for (long w = some; w < NARROW; w++) words[w].bits = 0;
        }
}

/* Transpose a square of LANES rows, zeros beyond `count`: swap halves, then quarters, ... */
static inline void transpose(const float *x, long stride, long count, float *out, long out_stride)
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

/* The panel of `columns` that begins with row s */
static inline void pack_panel(
    const float *x, long stride, long count, long width, const long columns, long s, float *panel)
{
    long w = 0;
    for (; w + LANES <= width; w += LANES)
        for (long i = 0; i < columns; i += LANES)
            transpose(x + (s + i) * stride + w, stride, count - s - i, panel + w * columns + i, columns);
    for (; w < width; w++)
        for (long i = 0; i < columns; i++) panel[w * columns + i] = s + i < count ? x[(s + i) * stride + w] : 0;
}

static inline void pack_transposed(const float *x, long stride, long count, long width, float *panels)
{
    for (long s = 0; s < count; s += NARROW) pack_panel(x, stride, count, width, NARROW, s, panels + s * width);
}
