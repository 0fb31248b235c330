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

void suite_gives_up(void)
{
    printf("the suite cannot go on\n");
    exit(1);
}

static void failed(const char *file, int line, const char *text)
{
    pthread_mutex_lock(&suite.lock);
    suite.failures++;
    printf("%s on %s failed at %s:%d: %s\n", suite.check, suite.kind, file, line, text);
    fflush(stdout);
    pthread_mutex_unlock(&suite.lock);
}

int expect(int holds, const char *file, int line, const char *text)
{
    char message[1024];
    if (!holds) {
        snprintf(message, sizeof(message), "not so: %s (last error: %s)", text, dist_last_error());
        failed(file, line, message);
    }
    return holds;
}

int expect_status(dist_status_t got, dist_status_t wanted, const char *file, int line, const char *call)
{
    char message[1024];
    if (got != wanted) {
        snprintf(message, sizeof(message), "%s gave %d (%s: %s), not %d (%s)", call, (int)got,
                 dist_status_string(got), got == DIST_OK ? "" : dist_last_error(), (int)wanted,
                 dist_status_string(wanted));
        failed(file, line, message);
    }
    return got == wanted;
}

int expect_word(const char *message, const char *word, int is_in, const char *file, int line)
{
    char text[1024];
    int holds = (strstr(message, word) != NULL) == is_in;
    if (!holds) {
        snprintf(text, sizeof(text), "\"%s\" is %s \"%s\"", word, is_in ? "not in" : "in", message);
        failed(file, line, text);
    }
    return holds;
}

/* ---- Short ways to ask a store ---- */

void settle(dist_store_t *store)
{
    int32_t all_present = 0;
    CHECK_OK(dist_store_check(store, NULL, NULL, 0, &all_present));
    CHECK(all_present == 1);
}

int exists(dist_store_t *store, const char *key)
{
    int32_t is_there = -1;
    CHECK_OK(dist_store_check(store, &key, NULL, 1, &is_there));
    return is_there;
}

int64_t count_keys(dist_store_t *store)
{
    int64_t count = -1;
    CHECK_OK(dist_store_num_keys(store, &count));
    return count;
}

int64_t sum_of(dist_store_t *store, const char *key, int64_t amount)
{
    int64_t sum = -1;
    CHECK_OK(dist_store_add(store, key, DIST_TERMINATED, amount, &sum));
    return sum;
}

int64_t length_of(dist_store_t *store, const char *queue)
{
    int64_t length = -1;
    CHECK_OK(dist_store_queue_len(store, queue, DIST_TERMINATED, &length));
    return length;
}

int was_deleted(dist_store_t *store, const char *key)
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
    size_t got = 0;
    if (blob == NULL || index >= dist_blob_count(blob)) {
        return 0;
    }
    CHECK_OK(dist_blob_data(blob, index, &data, &got));
    return got == len && (len == 0 || memcmp(data, bytes, len) == 0);
}

/* Returns true if a blob consists of this one element; releases it. */
static int is_only(dist_blob_t *blob, const void *bytes, size_t len)
{
    int is = blob != NULL && dist_blob_count(blob) == 1 && blob_is(blob, 0, bytes, len);
    CHECK_OK(dist_blob_release(blob));
    return is;
}

int holds_bytes(dist_store_t *store, const char *key, const void *bytes, size_t len)
{
    dist_blob_t *blob = NULL;
    CHECK_OK(dist_store_get(store, key, DIST_TERMINATED, &blob));
    return is_only(blob, bytes, len);
}

int holds_text(dist_store_t *store, const char *key, const char *text)
{
    return holds_bytes(store, key, text, strlen(text));
}

int compares(dist_store_t *store, const char *key, const char *expected, const char *desired, const char *wanted)
{
    dist_blob_t *blob = NULL;
    CHECK_OK(dist_store_compare_set(store, key, DIST_TERMINATED, expected, strlen(expected), desired, strlen(desired), &blob));
    return is_only(blob, wanted, strlen(wanted));
}

int pops_text(dist_store_t *store, const char *queue, const char *text)
{
    dist_blob_t *blob = NULL;
    CHECK_OK(dist_store_queue_pop(store, queue, DIST_TERMINATED, 1, &blob));
    return is_only(blob, text, strlen(text));
}

int lists(dist_store_t *store, const char *const *keys, size_t n)
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

unsigned char *pattern(size_t len)
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

int in_time(int64_t took_us, int64_t timeout_ms)
{
    /* The tolerance of 1 us allows for the rounding of both times. */
    return took_us >= timeout_ms * 1000 - 1 && took_us < (timeout_ms + LATE_MS) * 1000;
}

/* ---- A call on a thread of its own ---- */

struct order {
    struct aside *aside;
    act_t act;
};

static void *carry_out(void *argument)
{
    struct order order = *(struct order *)argument;
    int64_t began_us = now_us();
    free(argument);
    order.aside->status = order.act(order.aside);
    order.aside->took_us = now_us() - began_us;
    if (order.aside->status != DIST_OK) {
        dist_last_error_copy(order.aside->error, sizeof(order.aside->error));
    }
    return NULL;
}

void begin(struct aside *aside, act_t act, dist_store_t *store, const char *key, int64_t number)
{
    struct order *order = malloc(sizeof(*order));
    REQUIRE(order != NULL);
    memset(aside, 0, sizeof(*aside));
    aside->store = store;
    aside->key = key;
    aside->number = number;
    order->aside = aside;
    order->act = act;
    REQUIRE(pthread_create(&aside->thread, NULL, carry_out, order) == 0);
}

void end(struct aside *aside)
{
    REQUIRE(pthread_join(aside->thread, NULL) == 0);
}

/* Keeps the only element of a blob as text, if it is short. */
static void keep(struct aside *aside, dist_blob_t *blob)
{
    const void *data = NULL;
    size_t len = 0;
    CHECK_OK(dist_blob_data(blob, 0, &data, &len));
    if (len < sizeof(aside->text)) {
        memcpy(aside->text, data, len);
        aside->text[len] = '\0';
    }
    CHECK_OK(dist_blob_release(blob));
}

dist_status_t waiting(struct aside *aside)
{
    return dist_store_wait(aside->store, &aside->key, NULL, 1, aside->number);
}

dist_status_t getting(struct aside *aside)
{
    dist_blob_t *blob = NULL;
    dist_status_t status = dist_store_get(aside->store, aside->key, DIST_TERMINATED, &blob);
    if (status == DIST_OK) {
        keep(aside, blob);
    }
    return status;
}

dist_status_t popping(struct aside *aside)
{
    dist_blob_t *blob = NULL;
    dist_status_t status = dist_store_queue_pop(aside->store, aside->key, DIST_TERMINATED, 1, &blob);
    if (status == DIST_OK) {
        keep(aside, blob);
    }
    return status;
}

dist_status_t meeting(struct aside *aside)
{
    return dist_store_barrier(aside->store, aside->key, DIST_TERMINATED, (int32_t)aside->number, 0);
}
