/*
 * The common part of the programs around the blocks of the documents. A program replaces the line
 * `#include "block.inc"` by its block. It ends with status 1 if a check fails.
 */
#include <dist.h>
#include <stdio.h>
#include <stdlib.h>

/* The blocks are short: they ignore results that a whole program checks. */
#pragma GCC diagnostic ignored "-Wunused-result"
#pragma GCC diagnostic ignored "-Wunused-parameter"

static void check(int holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "%s: %s\n", what, dist_last_error());
        exit(1);
    }
}
