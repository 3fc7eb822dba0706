/* Draw each row's token: where the running sum of its probabilities passes a number. */

#include "native.h"

enum { PIECE = 512 }; /* entries summed together before the search within them */

/* Probabilities below fp32's smallest are 0: an impossible token is never drawn. */
static inline float likelihood(float x) { return x < -87.0f ? 0 : exponential(x); }

#define BELOW_ONE (1 - 1e-12)

/* The entry at which the running sum passes `left`, clamped below the sum as it is rounded here. */
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

/* Without numbers, take the most likely token. */
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
            while (piece > 0 && sums[piece] <= 0) piece--; /* rounding led past the last possible token */
            long from = piece * PIECE;
            tokens[i] = from + passed(x + from, most, scale, least(PIECE, width - from), left);
        } else
            for (tokens[i] = 0; tokens[i] < width - 1 && x[tokens[i]] < most;) tokens[i]++;
        log_probs[i] = (x[tokens[i]] - most) * scale - log(total);
    }
}
