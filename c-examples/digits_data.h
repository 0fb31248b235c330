/* The digits of data/digits.csv in memory. */
#ifndef DIGITS_DATA_H
#define DIGITS_DATA_H

#include <stddef.h>

#define DIGITS_PIXELS 64
#define DIGITS_CLASSES 10
#define DIGITS_ROWS 1797

typedef struct digit {
    float pixels[DIGITS_PIXELS]; /* 0 to 1 */
    int label;                   /* 0 to 9 */
} digit_t;

/*
 * Reads the DIGITS_ROWS rows of a file. Returns an array that the caller frees, or NULL after a message on standard
 * error that names the file and the line.
 */
digit_t *digits_load(const char *path);

#endif
