/*
 * Rows of the test "every function with NULL for one pointer at a time; the other arguments are
 * valid".
 *
 * Each row names the function and the argument; the Rust test compares the rows with the header,
 * so that none is missing. An error names the function, and the argument if it is invalid; no
 * call crashes.
 */
#ifndef NULL_H
#define NULL_H

#include "check.h"

static void check_row(const char *function, const char *argument, long long actual, long long expected,
                      int is_refusal, const char *file, int line)
{
    if (actual != expected) {
        printf("%s:%d: %s(%s = NULL) gave %lld, wanted %lld (%s)\n", file, line, function, argument,
               actual, expected, dist_last_error());
    }
    check_that(actual == expected, argument, file, line);
    if (is_refusal) {
        check_message(function, file, line);
        if (expected == DIST_ERR_INVALID_ARGUMENT) {
            check_message(argument, file, line);
        }
    }
}

#define REFUSED(function, argument, call, expected) \
    check_row(#function, #argument, (long long)(call), (long long)(expected), 1, __FILE__, __LINE__)
#define ACCEPTED(function, argument, call, expected) \
    check_row(#function, #argument, (long long)(call), (long long)(expected), 0, __FILE__, __LINE__)
#define ARGUMENT DIST_ERR_INVALID_ARGUMENT
#define HANDLE DIST_ERR_INVALID_HANDLE

#endif
