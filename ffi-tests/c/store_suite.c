/*
 * See store_suite.h.
 */
#define _POSIX_C_SOURCE 200809L
#include "store_suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- Expectations ---- */

static struct {
    pthread_mutex_t lock;
    const char *check;
    const char *kind;
    int failures;
} suite = { PTHREAD_MUTEX_INITIALIZER, "", "", 0 };

const char *suite_program;

void suite_begin(const char *check, const struct kind *kind)
{
    pthread_mutex_lock(&suite.lock);
    suite.check = check;
    suite.kind = kind->name;
    suite.failures = 0;
    pthread_mutex_unlock(&suite.lock);
}

int suite_failures(void)
{
    pthread_mutex_lock(&suite.lock);
    int failures = suite.failures;
    pthread_mutex_unlock(&suite.lock);
    return failures;
}

void suite_abort(void)
{
    printf("the suite cannot go on\n");
    exit(1);
}

static void record_failure(const char *file, int line, const char *text)
{
    pthread_mutex_lock(&suite.lock);
    suite.failures++;
    printf("%s on %s failed at %s:%d: %s\n", suite.check, suite.kind, file, line, text);
    fflush(stdout);
    pthread_mutex_unlock(&suite.lock);
}

int expect(int is_true, const char *file, int line, const char *text)
{
    char message[1024];
    if (!is_true) {
        snprintf(message, sizeof(message), "not so: %s (last error: %s)", text, dist_last_error());
        record_failure(file, line, message);
    }
    return is_true;
}

int expect_status(dist_status_t actual, dist_status_t expected, const char *file, int line, const char *call)
{
    char message[1024];
    if (actual != expected) {
        snprintf(message, sizeof(message), "%s gave %d (%s: %s), not %d (%s)", call, (int)actual,
                 dist_status_string(actual), actual == DIST_OK ? "" : dist_last_error(), (int)expected,
                 dist_status_string(expected));
        record_failure(file, line, message);
    }
    return actual == expected;
}

int expect_word(const char *message, const char *word, int is_in, const char *file, int line)
{
    char text[1024];
    int is_true = (strstr(message, word) != NULL) == is_in;
    if (!is_true) {
        snprintf(text, sizeof(text), "\"%s\" is %s \"%s\"", word, is_in ? "not in" : "in", message);
        record_failure(file, line, text);
    }
    return is_true;
}

/* ---- Short ways to ask a store ---- */

void await_writes(dist_store_t *store)
{
    int32_t all_present = 0;
    CHECK_OK(dist_store_check(store, NULL, NULL, 0, &all_present));
    CHECK(all_present == 1);
}

int exists(dist_store_t *store, const char *key)
{
    int32_t is_present = -1;
    CHECK_OK(dist_store_check(store, &key, NULL, 1, &is_present));
    return is_present;
}

int64_t count_keys(dist_store_t *store)
{
    int64_t count_up = -1;
    CHECK_OK(dist_store_num_keys(store, &count_up));
    return count_up;
}

int64_t add_to(dist_store_t *store, const char *key, int64_t amount)
{
    int64_t sum = -1;
    CHECK_OK(dist_store_add(store, key, DIST_TERMINATED, amount, &sum));
    return sum;
}

int64_t queue_length(dist_store_t *store, const char *queue)
{
    int64_t length = -1;
    CHECK_OK(dist_store_queue_len(store, queue, DIST_TERMINATED, &length));
    return length;
}

int delete_existing(dist_store_t *store, const char *key)
{
    int32_t deleted = -1;
    CHECK_OK(dist_store_delete_key(store, key, DIST_TERMINATED, &deleted));
    return deleted;
}

void set_text(dist_store_t *store, const char *key, const char *text)
{
    CHECK_OK(dist_store_set(store, key, DIST_TERMINATED, text, strlen(text)));
}

void push_text(dist_store_t *store, const char *queue, const char *text)
{
    CHECK_OK(dist_store_queue_push(store, queue, DIST_TERMINATED, text, strlen(text)));
}

int blob_is(const dist_blob_t *blob, size_t index, const void *bytes, size_t len)
{
    const void *data = NULL;
    size_t actual = 0;
    if (blob == NULL || index >= dist_blob_count(blob)) {
        return 0;
    }
    CHECK_OK(dist_blob_data(blob, index, &data, &actual));
    return actual == len && (len == 0 || memcmp(data, bytes, len) == 0);
}

/* Returns true if a blob consists of this one element; releases it. */
static int is_single_element(dist_blob_t *blob, const void *bytes, size_t len)
{
    int is = blob != NULL && dist_blob_count(blob) == 1 && blob_is(blob, 0, bytes, len);
    CHECK_OK(dist_blob_release(blob));
    return is;
}

int has_bytes(dist_store_t *store, const char *key, const void *bytes, size_t len)
{
    dist_blob_t *blob = NULL;
    CHECK_OK(dist_store_get(store, key, DIST_TERMINATED, &blob));
    return is_single_element(blob, bytes, len);
}

int has_text(dist_store_t *store, const char *key, const char *text)
{
    return has_bytes(store, key, text, strlen(text));
}

int compare_set_returns(dist_store_t *store, const char *key, const char *expected, const char *desired,
                        const char *value_after)
{
    dist_blob_t *blob = NULL;
    CHECK_OK(dist_store_compare_set(store, key, DIST_TERMINATED, expected, strlen(expected), desired, strlen(desired), &blob));
    return is_single_element(blob, value_after, strlen(value_after));
}

int pop_returns(dist_store_t *store, const char *queue, const char *text)
{
    dist_blob_t *blob = NULL;
    CHECK_OK(dist_store_queue_pop(store, queue, DIST_TERMINATED, 1, &blob));
    return is_single_element(blob, text, strlen(text));
}

int lists_exactly(dist_store_t *store, const char *const *keys, size_t n)
{
    dist_blob_t *blob = NULL;
    CHECK_OK(dist_store_list_keys(store, &blob));
    int all = blob != NULL && dist_blob_count(blob) == n;
    for (size_t i = 0; all && i < n; i++) {
        size_t times = 0;
        for (size_t j = 0; j < n; j++) {
            times += blob_is(blob, j, keys[i], strlen(keys[i])) != 0;
        }
        all = times == 1;
    }
    CHECK_OK(dist_blob_release(blob));
    return all;
}

unsigned char *make_pattern(size_t len)
{
    unsigned char *bytes = malloc(len);
    REQUIRE(bytes != NULL);
    for (size_t i = 0; i < len; i++) {
        bytes[i] = (unsigned char)(i ^ (i >> 8) ^ (i >> 16));
    }
    return bytes;
}

int64_t now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

int is_in_time(int64_t elapsed_us, int64_t timeout_ms)
{
    /* The tolerance of 1 us allows for the rounding of both times. */
    return elapsed_us >= timeout_ms * 1000 - 1 && elapsed_us < (timeout_ms + MAX_DELAY_MS) * 1000;
}

/* ---- A call on a thread of its own ---- */

struct start_args {
    struct call *call;
    call_fn_t function;
};

static void *run_call(void *argument)
{
    struct start_args order = *(struct start_args *)argument;
    int64_t start_us = now_us();
    free(argument);
    order.call->status = order.function(order.call);
    order.call->elapsed_us = now_us() - start_us;
    if (order.call->status != DIST_OK) {
        dist_last_error_copy(order.call->error, sizeof(order.call->error));
    }
    return NULL;
}

void start_call(struct call *call, call_fn_t function, dist_store_t *store, const char *key, int64_t number)
{
    struct start_args *order = malloc(sizeof(*order));
    REQUIRE(order != NULL);
    memset(call, 0, sizeof(*call));
    call->store = store;
    call->key = key;
    call->argument = number;
    order->call = call;
    order->function = function;
    REQUIRE(pthread_create(&call->thread, NULL, run_call, order) == 0);
}

void join_call(struct call *call)
{
    REQUIRE(pthread_join(call->thread, NULL) == 0);
}

/* Keeps the only element of a blob as text, if it is short. */
static void save_text(struct call *call, dist_blob_t *blob)
{
    const void *data = NULL;
    size_t len = 0;
    CHECK_OK(dist_blob_data(blob, 0, &data, &len));
    if (len < sizeof(call->text)) {
        memcpy(call->text, data, len);
        call->text[len] = '\0';
    }
    CHECK_OK(dist_blob_release(blob));
}

dist_status_t call_wait(struct call *call)
{
    return dist_store_wait(call->store, &call->key, NULL, 1, call->argument);
}

dist_status_t call_get(struct call *call)
{
    dist_blob_t *blob = NULL;
    dist_status_t status = dist_store_get(call->store, call->key, DIST_TERMINATED, &blob);
    if (status == DIST_OK) {
        save_text(call, blob);
    }
    return status;
}

dist_status_t call_pop(struct call *call)
{
    dist_blob_t *blob = NULL;
    dist_status_t status = dist_store_queue_pop(call->store, call->key, DIST_TERMINATED, 1, &blob);
    if (status == DIST_OK) {
        save_text(call, blob);
    }
    return status;
}

dist_status_t call_barrier(struct call *call)
{
    return dist_store_barrier(call->store, call->key, DIST_TERMINATED, (int32_t)call->argument, 0);
}
