/*
 * AdamW for one range of parameters. See adam.h.
 */
#include "adam.h"

#include <math.h>

#define MEAN_FACTOR 0.9
#define SQUARE_FACTOR 0.95
#define EPSILON 1e-8
#define WEIGHT_DECAY 0.1

void adam_update(const adam_range_t *range, double learning_rate, uint64_t update)
{
    const float mean_factor = (float)MEAN_FACTOR;
    const float square_factor = (float)SQUARE_FACTOR;
    /* The means begin at zero. These factors correct the first updates. */
    const float mean_scale = (float)(1.0 / (1.0 - pow(MEAN_FACTOR, (double)update)));
    const float square_scale = (float)(1.0 / (1.0 - pow(SQUARE_FACTOR, (double)update)));
    const float rate = (float)learning_rate;
    const float decay_factor = (float)(1.0 - learning_rate * (range->decays ? WEIGHT_DECAY : 0.0));
    for (size_t i = 0; i < range->count; i++) {
        const float gradient = range->gradient[i];
        range->mean[i] = mean_factor * range->mean[i] + (1.0f - mean_factor) * gradient;
        range->square[i] = square_factor * range->square[i] + (1.0f - square_factor) * gradient * gradient;
        const float denominator = sqrtf(range->square[i] * square_scale) + (float)EPSILON;
        range->values[i] = decay_factor * range->values[i] - rate * mean_scale * range->mean[i] / denominator;
    }
}
