/* Linear layers, forwards and backwards, inside a parallel region: each product runs on one thread.

   Weights are not in panels, so they are multiplied by PyTorch's own library where it is fast, else by tiles. Where `half` is
   set, they and their gradients are bf16, and what they are multiplied with is rounded to bf16; sums are fp32. */

#include "products.h"

typedef void Product(
    const char *, const char *, const int *, const int *, const int *, const float *, const void *, const int *,
    const void *, const int *, const float *, float *, const int *);
static Product *library_product[2]; /* of fp32, of bf16 */

void multiply_with(void *of_single, void *of_half)
{
    library_product[0] = (Product *)of_single;
    library_product[1] = (Product *)of_half;
}

enum { DEEP = 256 }; /* words of a panel that is packed on the fly */

/* See `multiply`; of bf16 all lengths along k count pairs, and only the weight of 'N', 'N' is not laid out in pairs along it. */
static void by_tiles(
    int half, char turn_x, char turn_y, long m, long n, long k, const float *x, long x_row, const float *y, long y_row,
    int add, float *out, long out_row)
{
    float panel[DEEP * NARROW];
    long down = turn_y == 'N' ? y_row : 1, along = turn_y == 'N' ? 1 : y_row;
    for (long i = 0; i < n && !k && !add; i++) memset(out + i * out_row, 0, m * sizeof(float));
    for (long from = 0; from < k; from += DEEP)
        for (long c = 0; c < m; c += NARROW) {
            long depth = least(DEEP, k - from), columns = least(NARROW, m - c);
            if (turn_x == 'T') pack_transposed(x + c * x_row + from, x_row, columns, depth, panel);
            else if (half && turn_y == 'N') pack_pairs((const bf16 *)x + 2 * from * x_row + c, x_row, depth, columns, panel);
            else pack(x + from * x_row + c, x_row, depth, columns, panel);
            narrow_product(half, y + from * along, down, along, n, panel, 0, depth, out + c, out_row, columns, add || from);
        }
}

/* As BLAS counts, columns first: out (n, m) = y (n, k) @ x (k, m) (+ out), either side transposed where its flag is 'T' */
static void multiply(
    int half, char turn_x, char turn_y, int m, int n, int k, const void *x, int x_row, const void *y, int y_row, int add,
    float *out, int out_row)
{
    float one = 1, more = add;
    if (library_product[half]) {
        library_product[half](&turn_x, &turn_y, &m, &n, &k, &one, x, &x_row, y, &y_row, &more, out, &out_row);
        return;
    }
    long words = half ? (k + 1L) / 2 : k;
    if (half && turn_x == 'T') x_row /= 2;
    if (half && turn_y == 'N') y_row /= 2;
    by_tiles(half, turn_x, turn_y, m, n, words, x, x_row, y, y_row, add, out, out_row);
}

typedef struct {
    const void *weight;
    const float *bias;
    void *d_weight;
    float *d_bias;
    long inputs, outputs;
    int half;
    float *room; /* of bf16: a thread's own, for a block of tokens */
} Linear;

/* Rows of x, which are `stride` floats apart, in the weight's type; *row is how far apart they are then. */
static const void *as_weight(const Linear *own, const float *x, long stride, long rows, long width, long *row)
{
    *row = own->half ? width : stride;
    if (!own->half) return x;
    bf16 *to = (bf16 *)own->room;
    for (long i = 0; i < rows; i++) round_row(x + i * stride, width, to + i * width);
    return to;
}

/* y = x @ weight^T + bias + more; rows of y are `stride` floats apart, all others are contiguous */
static void linear(Linear own, const float *x, long rows, const float *more, float *y, long stride)
{
    int begun = own.bias || more;
    for (long i = 0; i < rows && begun; i++)
#pragma omp simd
        for (long o = 0; o < own.outputs; o++)
            y[i * stride + o] = (own.bias ? own.bias[o] : 0) + (more ? more[i * own.outputs + o] : 0);
    long row;
    const void *left = as_weight(&own, x, own.inputs, rows, own.inputs, &row);
    multiply(own.half, 'T', 'N', own.outputs, rows, own.inputs, own.weight, own.inputs, left, row, begun, y, stride);
}

/* dx = dy @ weight (+ dx) */
static void linear_back(Linear own, const float *dy, long stride, long rows, int add, float *dx)
{
    long row;
    const void *left = as_weight(&own, dy, stride, rows, own.outputs, &row);
    multiply(own.half, 'N', 'N', own.inputs, rows, own.outputs, own.weight, own.inputs, left, row, add, dx, own.inputs);
}

/* ---- gradients of the weights: each thread takes some outputs, of all tokens ---- */

typedef struct {
    float *x, *dy;   /* of bf16: memory that all threads share, for all tokens */
    float *d_weight; /* sums that are not rounded yet: a thread's own, of `size` floats */
    long size;
} Room;

/* All tokens rounded to bf16; for tiles two tokens follow each other in every column, and an odd last one is paired with zeros. */
static void round_tokens(const float *x, long stride, long rows, long width, int paired, float *room)
{
#pragma omp for schedule(static)
    for (long i = 0; i < rows; i += 2) {
        const float *one = x + i * stride, *other = i + 1 < rows ? one + stride : 0;
        bf16 *to = (bf16 *)room + i * width;
        Number *words = (Number *)to;
        if (paired)
#pragma omp simd
            for (long j = 0; j < width; j++) words[j].bits = to_bf16(one[j]) | (uint32_t)(other ? to_bf16(other[j]) : 0) << 16;
        else {
            round_row(one, width, to);
            if (other) round_row(other, width, to + width);
        }
    }
}

static void half_slopes(const Linear *own, long from, long to, const float *x, const float *dy, long stride, long rows, Room room)
{
    long inputs = own->inputs, step = room.size / inputs, paired = !library_product[1];
    round_tokens(x, inputs, rows, inputs, paired, room.x);
    round_tokens(dy, stride, rows, own->outputs, paired, room.dy);
    for (long at = from; at < to; at += step) {
        long some = least(step, to - at);
        const bf16 *first = (const bf16 *)room.dy + (paired ? 2 * at : at);
        bf16 *d_weight = (bf16 *)own->d_weight + at * inputs;
        multiply(1, 'N', 'T', inputs, some, rows, room.x, inputs, first, own->outputs, 0, room.d_weight, inputs);
        round_row(room.d_weight, some * inputs, d_weight);
    }
#pragma omp barrier /* the next layer rounds to the same memory */
}

static void linear_slopes(Linear own, const float *x, const float *dy, long stride, long rows, Room room)
{
    long me = omp_get_thread_num(), all = omp_get_num_threads(), pieces = (own.outputs + LANES - 1) / LANES;
    long from = pieces * me / all * LANES, to = least(pieces * (me + 1) / all * LANES, own.outputs);
    if (own.half) half_slopes(&own, from, to, x, dy, stride, rows, room);
    else if (from < to)
        multiply(0, 'N', 'T', own.inputs, to - from, rows, x, own.inputs, dy + from, stride, 0,
                 (float *)own.d_weight + from * own.inputs, own.inputs);
    if (!own.d_bias || from >= to) return;
    memset(own.d_bias + from, 0, (to - from) * sizeof(float));
    for (long i = 0; i < rows; i++)
#pragma omp simd
        for (long o = from; o < to; o++) own.d_bias[o] += dy[i * stride + o];
}
