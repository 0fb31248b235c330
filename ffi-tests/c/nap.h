/*
 * Sleeps for a number of milliseconds. The file that includes this header defines _POSIX_C_SOURCE.
 */
#ifndef NAP_H
#define NAP_H

#include <time.h>

static inline void nap_ms(long ms)
{
    struct timespec time = { ms / 1000, ms % 1000 * 1000000 };
    nanosleep(&time, NULL);
}

#endif
