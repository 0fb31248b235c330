/* The digits of data/digits.csv in memory. */
#ifndef DIGITS_DATA_H
#define DIGITS_DATA_H

#include <stddef.h>

#define DIGITS_PIXELS 64
#define DIGITS_CLASSES 10
#define DIGITS_ROWS 1797
/* The rows of the split that train; the rest is held out. */
#define TRAIN_ROWS 1500

typedef struct digit {
    float pixels[DIGITS_PIXELS]; /* 0 to 1 */
    int label;                   /* 0 to 9 */
} digit_t;

/*
 * Reads the DIGITS_ROWS rows of a file and puts them into an order that never changes, since those of the file are not
 * in a random one. Returns an array that the caller frees, or NULL after a message on standard error that says what is wrong,
 * of a row with the file and the line.
 */
digit_t *digits_load_split(const char *path);

#endif
