/* Compute in one pass over memory what PyTorch does in many: fp32, on a CPU, on PyTorch's own threads.

   library.py compiles all C files here for the processor they run on. Functions that Python calls start a parallel region
   and are called outside of one. Callers check every id and shape: nothing is checked here. */

#include <math.h>
#include <omp.h>
#include <stdint.h>
#include <string.h>

/* A product's tile of at most ROWS rows of VECTORS vectors stays in registers while it is summed. */
#if defined(__AVX512F__)
enum { LANES = 16, ROWS = 8, VECTORS = 3 };
#elif defined(__AVX2__)
enum { LANES = 8, ROWS = 6, VECTORS = 2 };
#else
enum { LANES = 4, ROWS = 4, VECTORS = 4 };
#endif
typedef float vector __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef int32_t integers __attribute__((vector_size(LANES * 4)));

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
    union { uint32_t bits; float number; } power = {((uint32_t)(int32_t)n + 127) << 23}; /* unsigned: n may be NaN's */
    return p * power.number;
}

static inline float highest(const float *x, long width)
{
    float most = -INFINITY;
#pragma omp simd reduction(max : most)
    for (long v = 0; v < width; v++) most = x[v] > most ? x[v] : most;
    return most;
}

/* RMS norm; returns the factor that x was multiplied by before the weight. */
static inline float norm(const float *x, const float *weight, float epsilon, long width, float *y)
{
    float squares = 0;
#pragma omp simd reduction(+ : squares)
    for (long i = 0; i < width; i++) squares += x[i] * x[i];
    float scale = 1 / sqrtf(squares / width + epsilon);
#pragma omp simd
    for (long i = 0; i < width; i++) y[i] = x[i] * scale * weight[i];
    return scale;
}

/* Rotate the two halves against each other. */
static inline void rotate(float *x, const float *cos, const float *sin, long width)
{
    long half = width / 2;
#pragma omp simd
    for (long i = 0; i < half; i++) {
        float one = x[i], other = x[i + half];
        x[i] = one * cos[i] - other * sin[i];
        x[i + half] = other * cos[i + half] + one * sin[i + half];
    }
}

/* ---- Llama-like layers ---- */

/* `half`: embeddings, linear layers and head are bf16; all else is fp32 */
typedef struct {
    long layers, hidden, queries, keys, width, feed, half;
} Shape;

/* Weights: in panels for decoder.c, as linear layers hold them for reader.c. Only decoder.c uses keys and values. */
typedef struct {
    const float *before, *qkv, *qkv_bias, *head_norm, *out, *out_bias, *between;
    const float *gate, *gate_bias, *up, *up_bias, *down, *down_bias;
    float *keys, *values;
    long row_stride, head_stride;
    float before_epsilon, head_epsilon, between_epsilon, scale;
} Layer;

/* ---- reader.c and attention.c ---- */

/* One pass over a packed batch, and the scratch memory of its threads */
typedef struct {
    const long *bounds; /* first token of each sequence, and the end of the last */
    const long *wanted; /* tokens whose states are wanted after the last layer, where these are not all */
    long sequences, rows, wanted_rows, each;
    long common; /* tokens of the first sequence, where all others go on from it; else 0. Forwards only. */
    const float *cos, *sin;
    float *scratch; /* `each` floats a thread */
} Reading;

void attention(
    const Shape *shape, const Reading *run, const float *turned, const float *qkv, float scale, float *mixed, float *sums);

void attention_back(
    const Shape *shape, const Reading *run, const float *turned, const float *qkv, float scale, const float *mixed,
    const float *sums, const float *d_mixed, float *d_turned, float *d_qkv);

long attention_size(const Shape *shape, long longest);

/* ---- sampling.c ---- */

void draw(
    const float *logits, const double *numbers, float scale, long rows, long width, long *tokens, float *log_probs);
