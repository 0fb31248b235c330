/*
 * Reads digits.csv: one row per digit, 64 pixels and the label. The rows are shuffled with a
 * fixed seed, so that every rank has the same order.
 */
#include "digits_data.h"

#include "rng.h"

#include <stdio.h>
#include <stdlib.h>

/* A row is 65 numbers of at most two figures with their commas. */
#define LINE_BYTES 512

/* Reads one number from *text, and moves *text past it and its separator. Returns -1 if there is
 * no number in 0..=max. */
static int parse_number(char **text, int max)
{
    char *end;
    long value = strtol(*text, &end, 10);
    if (end == *text || value < 0 || value > max) {
        return -1;
    }
    *text = *end == ',' ? end + 1 : end;
    return (int)value;
}

static int parse_row(char *text, digit_t *digit)
{
    for (int i = 0; i < DIGITS_PIXELS; i++) {
        int value = parse_number(&text, 16);
        if (value < 0) {
            return -1;
        }
        digit->pixels[i] = (float)value / 16.0f;
    }
    digit->label = parse_number(&text, DIGITS_CLASSES - 1);
    return digit->label < 0 ? -1 : 0;
}

static digit_t *load_rows(const char *path)
{
    FILE *file = fopen(path, "r");
    if (file == NULL) {
        perror(path);
        return NULL;
    }
    digit_t *digits = malloc(DIGITS_ROWS * sizeof *digits);
    if (digits == NULL) {
        fprintf(stderr, "%s: out of memory\n", path);
        fclose(file);
        return NULL;
    }
    char line[LINE_BYTES];
    int rows = 0;
    while (rows < DIGITS_ROWS && fgets(line, sizeof line, file) != NULL && parse_row(line, &digits[rows]) == 0) {
        rows++;
    }
    fclose(file);
    if (rows < DIGITS_ROWS) {
        fprintf(stderr, "%s: line %d is missing or is not 64 pixels and a label\n", path, rows + 1);
        free(digits);
        return NULL;
    }
    return digits;
}

digit_t *digits_load_split(const char *path)
{
    digit_t *digits = load_rows(path);
    digit_t *split = malloc(DIGITS_ROWS * sizeof *split);
    if (digits == NULL || split == NULL) {
        if (digits != NULL) {
            fprintf(stderr, "%s: out of memory\n", path);
        }
        free(digits);
        free(split);
        return NULL;
    }
    uint32_t order[DIGITS_ROWS];
    rng_t rng = {2026};
    for (uint32_t i = 0; i < DIGITS_ROWS; i++) {
        order[i] = i;
    }
    rng_shuffle(&rng, order, DIGITS_ROWS);
    for (size_t i = 0; i < DIGITS_ROWS; i++) {
        split[i] = digits[order[i]];
    }
    free(digits);
    return split;
}
