/*
 * A small pseudo-random generator (SplitMix64): a run is the same on every machine, and every
 * rank draws the same sequence from the same seed.
 */
#ifndef RNG_H
#define RNG_H

#include <stddef.h>
#include <stdint.h>

typedef struct rng {
    uint64_t state;
} rng_t;

static inline uint64_t rng_next(rng_t *rng)
{
    uint64_t z = rng->state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* Returns a number in [-limit, limit). */
static inline float rng_uniform(rng_t *rng, float limit)
{
    float unit = (float)(rng_next(rng) >> 40) / 16777216.0f;
    return limit * (2.0f * unit - 1.0f);
}

/* Puts `count` indices into a random order (Fisher and Yates). */
static inline void rng_shuffle(rng_t *rng, uint32_t *indices, size_t count)
{
    for (size_t i = count; i > 1; i--) {
        size_t j = (size_t)(rng_next(rng) % i);
        uint32_t last = indices[i - 1];
        indices[i - 1] = indices[j];
        indices[j] = last;
    }
}

#endif
