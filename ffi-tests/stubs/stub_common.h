/*
 * What both stub libraries share: the log of misuse, switches from the environment, handles that are tokens.
 *
 * Each library has a copy of its own; nothing here is exported. It knows nothing of CUDA or NCCL.
 */
#ifndef STUB_COMMON_H
#define STUB_COMMON_H

#include <stddef.h>
#include <stdint.h>

/* What the libraries export; all else is hidden. */
#define STUB_API __attribute__((visibility("default")))

/* Appends a line to the file that DIST_STUB_LOG names, with the process in front. */
__attribute__((format(printf, 1, 2))) void stub_log(const char *format, ...);

/* The same for a call that the real library would not survive, or not notice: counted, and with
 * DIST_STUB_MISUSE=abort the end of the process, so that a debugger shows who called. */
__attribute__((format(printf, 1, 2))) void stub_misuse(const char *format, ...);

/* How often that was. */
unsigned long stub_misuses(void);

/* A number from the environment, or what stands in for it. */
long stub_number(const char *name, long otherwise);

/* Reads up to `most` numbers that `separator` divides; returns how many there are. */
int stub_numbers(const char *text, char separator, long *numbers, int most);

void stub_sleep_us(long us);

/* A call that is to fail, once, after others of the same function. */
struct stub_fault {
    char function[64];
    long calls;
    int error;
};

/* Reads "function:calls:error" from the environment. */
void stub_read_fault(struct stub_fault *fault, const char *name);
void stub_set_fault(struct stub_fault *fault, const char *function, long calls, int error);
/* Whether it is this call; the caller sees to the order of calls. */
int stub_fails_now(struct stub_fault *fault, const char *function);

/* Handles are tokens: no address (using one as such is a fault at once), and never given out twice, so that
 * a stale one is told from a new one. The kinds are the library's own small numbers, from 1 to 15. */
void *stub_handle_new(int kind, void *object);

/* The object; NULL where the token is none, or stale, or of another kind. */
void *stub_handle_find(int kind, const void *token);

/* As above, and the token is stale from now on. */
void *stub_handle_take(int kind, const void *token);

/* How many handles of a kind there are. */
int stub_handle_count(int kind);

/* Calls a function with each object of a kind. It makes and takes no handles. */
void stub_handle_each(int kind, void (*visit)(void *object, void *context), void *context);

#endif
