// The data set and the random generator of digits_training, which are C, for C++.
#ifndef TRAIN_DDP_DIGITS_HPP
#define TRAIN_DDP_DIGITS_HPP

extern "C" {
#include "../digits_training/digits_data.h"
#include "../digits_training/rng.h"
}

#endif  // TRAIN_DDP_DIGITS_HPP
