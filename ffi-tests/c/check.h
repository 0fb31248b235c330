/*
 * Helpers of the C tests: checks that count and print their position, and a world group for
 * tests.
 *
 * A failed check prints a line, and the program continues; main ends with `return
 * check_report();`. Any thread may make checks.
 */
#ifndef CHECK_H
#define CHECK_H

#include <dist.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One instance for all files of a program. */
__attribute__((weak)) struct checks {
    pthread_mutex_t lock;
    int n_made;
    int failed;
} checks = { PTHREAD_MUTEX_INITIALIZER, 0, 0 };

static inline int check_that(int is_true, const char *text, const char *file, int line)
{
    pthread_mutex_lock(&checks.lock);
    checks.n_made++;
    checks.failed += !is_true;
    pthread_mutex_unlock(&checks.lock);
    if (!is_true) {
        printf("%s:%d: does not hold: %s (last error: %s)\n", file, line, text, dist_last_error());
    }
    return is_true;
}

static inline int check_status(dist_status_t actual, dist_status_t expected, const char *call,
                               const char *file, int line)
{
    int is_true = actual == expected;
    if (!is_true) {
        printf("%s:%d: %s\n  returned %d (%s: %s)\n  wanted   %d (%s)\n", file, line, call, (int)actual,
               dist_status_string(actual), dist_last_error(), (int)expected, dist_status_string(expected));
    }
    return check_that(is_true, "the status above", file, line);
}

/* Checks that the message of the last failed call contains a word. */
static inline int check_message(const char *word, const char *file, int line)
{
    const char *message = dist_last_error();
    int is_true = strstr(message, word) != NULL;
    if (!is_true) {
        printf("%s:%d: \"%s\" is not in \"%s\"\n", file, line, word, message);
    }
    return check_that(is_true, "the message above", file, line);
}

static inline void check_required(int is_true)
{
    if (!is_true) {
        printf("the test cannot go on\n");
        exit(1);
    }
}

static inline int check_report(void)
{
    printf("%d checks, %d failed\n", checks.n_made, checks.failed);
    return checks.failed != 0 || checks.n_made == 0;
}

#define CHECK(condition) check_that((condition) != 0, #condition, __FILE__, __LINE__)
#define CHECK_STATUS(call, expected) check_status((call), (expected), #call, __FILE__, __LINE__)
#define CHECK_OK(call) CHECK_STATUS(call, DIST_OK)
#define CHECK_MESSAGE(word) check_message((word), __FILE__, __LINE__)
/* Checks that a call is refused with this status and a message that contains a word. */
#define CHECK_REFUSED(call, expected, word) \
    do { \
        CHECK_STATUS(call, expected); \
        CHECK_MESSAGE(word); \
    } while (0)
/* Checks without which the test cannot continue. */
#define REQUIRE(condition) check_required(CHECK(condition))
#define REQUIRE_OK(call) check_required(CHECK_OK(call))

/* The time limit of every call in a test. */
#define LIMIT_MS 40000

/* Waits until all ranks have arrived. A rank that returns first may abort the group while its
 * peers are still in the barrier. */
static inline void meet_before_abort(dist_group_t *group)
{
    dist_status_t status = dist_barrier(group, NULL, NULL);
    CHECK(status == DIST_OK || status == DIST_ERR_ABORTED);
}

/* Creates a store in memory. */
static inline dist_store_t *new_store(void)
{
    dist_store_t *store = NULL;
    REQUIRE_OK(dist_store_hash_create(&store));
    return store;
}

/* Initialises the world group of a single process. */
static inline void start_world(void)
{
    dist_store_t *store = new_store();
    dist_init_options_t options = DIST_INIT_OPTIONS_INIT;
    options.store = store;
    options.fields = DIST_FIELD_RANK;
    options.rank = 0;
    options.world_size = 1;
    options.connect_timeout_ms = LIMIT_MS;
    options.timeout_ms = LIMIT_MS;
    REQUIRE_OK(dist_init(&options));
    REQUIRE_OK(dist_store_release(store));
}

/* As join_group, with options of the back end. */
static inline dist_status_t join_group_with(dist_store_t *store, const char *name, int rank, int size,
                                            const char *backend_options, dist_group_t **group)
{
    dist_group_options_t options = DIST_GROUP_OPTIONS_INIT;
    options.store = store;
    options.name = name;
    options.fields = DIST_FIELD_RANK;
    options.rank = rank;
    options.world_size = size;
    options.backend_options = backend_options;
    options.connect_timeout_ms = LIMIT_MS;
    options.timeout_ms = LIMIT_MS;
    return dist_group_create(&options, group);
}

/* Creates a group whose ranks meet in a store; each rank calls it once. */
static inline dist_status_t join_group(dist_store_t *store, const char *name, int rank, int size,
                                       dist_group_t **group)
{
    return join_group_with(store, name, rank, size, NULL, group);
}

#endif
