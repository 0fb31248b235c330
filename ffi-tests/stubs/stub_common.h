/*
 * Shared parts of both stub libraries: the misuse log, switches from the environment, and
 * handles.
 *
 * Each library has its own copy and does not export it. This file does not depend on CUDA or
 * NCCL.
 */
#ifndef STUB_COMMON_H
#define STUB_COMMON_H

#include <stddef.h>
#include <stdint.h>

/* Marks exported functions; all other symbols are hidden. */
#define STUB_API __attribute__((visibility("default")))

/* Appends a line to the file in DIST_STUB_LOG, with the process id in front. */
__attribute__((format(printf, 1, 2))) void stub_log(const char *format, ...);

/* Logs and counts a call that the real library would not survive, or not detect. With
 * DIST_STUB_MISUSE=abort the process aborts, so that a debugger shows the caller. */
__attribute__((format(printf, 1, 2))) void stub_misuse(const char *format, ...);

/* Returns the number of logged misuses. */
unsigned long stub_misuses(void);

/* Returns a number from the environment, or the default. */
long stub_env_number(const char *name, long fallback);

/* Reads up to `max_numbers` numbers between separators and returns how many there are. */
int stub_parse_numbers(const char *text, char separator, long *numbers, int max_numbers);

void stub_sleep_us(long us);

/* A requested failure of one call, after a number of earlier calls of the same function. */
struct stub_fault {
    char function[64];
    long calls;
    int error;
};

/* Reads "function:calls:error" from the environment. */
void stub_read_fault(struct stub_fault *fault, const char *name);
void stub_set_fault(struct stub_fault *fault, const char *function, long calls, int error);
/* Returns true if this call must fail; the caller serialises the calls. */
int stub_fails_now(struct stub_fault *fault, const char *function);

/* Handles are tokens. A token is no valid address, so a dereference crashes immediately. A token
 * is never reused, so that a stale token differs from a new one. Each library defines its kinds
 * as small numbers from 1 to 15. */
void *stub_handle_new(int kind, void *object);

/* Returns the object; NULL if the token is invalid, stale, or of another kind. */
void *stub_handle_find(int kind, const void *token);

/* As stub_handle_find, and makes the token stale. */
void *stub_handle_take(int kind, const void *token);

/* Returns the number of handles of a kind. */
int stub_handle_count(int kind);

/* Calls a function for each object of a kind. The function must not create or take handles. */
void stub_handle_each(int kind, void (*visit)(void *object, void *context), void *context);

#endif
