/* Heat in a square plate, by Jacobi's method: heat SIZE SWEEPS REPORTS, on OMP_NUM_THREADS. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static double sweep(const double *from, double *to, int n)
{
    double change = 0.0;
#pragma omp parallel for reduction(max : change) schedule(static)
    for (int i = 1; i < n - 1; i++) {
        for (int j = 1; j < n - 1; j++) {
            int at = i * n + j;
            to[at] = 0.25 * (from[at - 1] + from[at + 1] + from[at - n] + from[at + n]);
            change = fmax(change, fabs(to[at] - from[at]));
        }
    }
    return change;
}

int main(int argc, char **argv)
{
    if (argc != 4) {
        fprintf(stderr, "usage: %s SIZE SWEEPS REPORTS\n", argv[0]);
        return 2;
    }
    int n = atoi(argv[1]), sweeps = atoi(argv[2]), reports = atoi(argv[3]);
    double *old = calloc((size_t)n * n, sizeof *old), *new = calloc((size_t)n * n, sizeof *new);
    if (!old || !new) {
        perror("calloc");
        return 1;
    }
    for (int j = 0; j < n; j++)
        old[j] = new[j] = 100.0;
    for (int report = 1; report <= reports; report++) {
        double change = 0.0;
        for (int s = 0; s < sweeps; s++) {
            change = sweep(old, new, n);
            double *other = old;
            old = new;
            new = other;
        }
        printf("report %d change %.6f\n", report, change);
    }
    free(old);
    free(new);
    return 0;
}
