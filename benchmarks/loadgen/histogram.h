/* Latencies in nanoseconds, log-linear: 128 buckets for each power of two, so a value is known within 0.8 %.
 * `benchmarks/histogram.py` has the same buckets. */
#ifndef TIDELOG_HISTOGRAM_H
#define TIDELOG_HISTOGRAM_H

#include <stdint.h>
#include <stdio.h>

enum { SUB_BITS = 7, SUB_BUCKETS = 1 << SUB_BITS, BUCKETS = 44 * SUB_BUCKETS };

typedef struct {
    uint64_t count[BUCKETS];
} Histogram;

static void record(Histogram *histogram, uint64_t ns) {
    int index;
    if (ns < SUB_BUCKETS) {
        index = (int)ns;
    } else {
        int shift = 63 - __builtin_clzll(ns) - SUB_BITS;
        index = (shift + 1) * SUB_BUCKETS + (int)(ns >> shift & (SUB_BUCKETS - 1));
        if (index >= BUCKETS) index = BUCKETS - 1;
    }
    histogram->count[index]++;
}

/* As JSON: pairs of bucket index and count, the empty ones left out. */
static void print_histogram(const char *name, const Histogram *histogram) {
    printf("\"%s\": [", name);
    const char *comma = "";
    for (int i = 0; i < BUCKETS; i++)
        if (histogram->count[i] > 0) {
            printf("%s[%d, %llu]", comma, i, (unsigned long long)histogram->count[i]);
            comma = ", ";
        }
    printf("]");
}
#endif
