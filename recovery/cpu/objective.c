/* Reverse KL(p || q) of logits, row by row, and its gradient along p's logits. */

#include "native.h"

enum { SUMMED = 1024 }; /* entries summed in fp32 before their sum is added in double */

static float mass(const float *x, float scale, float log_sum, const long *entries, long count)
{
    float total = 0;
    for (long k = 0; k < count; k++) total += expf(x[entries[k]] * scale - log_sum);
    return total;
}

/* A row of `told`: the KL, p's entropy, the token's log-probability under p and under q, and the probability of the stop
   tokens under each. `slope` takes the gradient; it may be the student's own memory, or null. */
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
