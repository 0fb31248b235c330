/* The digits of data/digits.csv in memory. */
#ifndef DIGITS_DATA_H
#define DIGITS_DATA_H

#include <stddef.h>

#define DIGITS_PIXELS 64
#define DIGITS_CLASSES 10
#define DIGITS_ROWS 1797
/* The number of training rows; the other rows are held out. */
#define TRAIN_ROWS 1500

typedef struct digit {
    float pixels[DIGITS_PIXELS]; /* 0 to 1 */
    int label;                   /* 0 to 9 */
} digit_t;

/*
 * Reads the DIGITS_ROWS rows of a file and puts them into a fixed pseudo-random order, since the
 * file's order is not random. Returns an array that the caller frees. On an error it prints the
 * reason to standard error, with file and line for a faulty row, and returns NULL.
 */
digit_t *digits_load_split(const char *path);

#endif
