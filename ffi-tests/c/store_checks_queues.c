/*
 * Queues and barriers.
 */
#include "store_suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static dist_status_t try_pop(dist_store_t *store, const char *queue)
{
    dist_blob_t *blob = NULL;
    dist_status_t status = dist_store_queue_pop(store, queue, DIST_TERMINATED, 0, &blob);
    CHECK((status == DIST_OK) == (blob != NULL));
    CHECK_OK(dist_blob_release(blob));
    return status;
}

static void items_keep_their_order(struct users *u)
{
    static const char *const items[] = { "one", "two", "three", "two" };
    for (size_t i = 0; i < 4; i++) {
        push_text(u->a, "queue", items[i]);
    }
    await_writes(u->a);
    for (size_t i = 0; i < 4; i++) {
        CHECK(pop_returns(i % 2 == 0 ? u->b : u->a, "queue", items[i]));
    }
    CHECK_STATUS(try_pop(u->a, "queue"), DIST_ERR_QUEUE_EMPTY);
}

static void length_counts_items(struct users *u)
{
    CHECK(queue_length(u->a, "queue") == 0);
    for (int i = 0; i < 3; i++) {
        push_text(u->a, "queue", "item");
        CHECK(queue_length(u->a, "queue") == i + 1);
    }
    CHECK(queue_length(u->b, "queue") == 3);
    CHECK(pop_returns(u->b, "queue", "item"));
    CHECK(queue_length(u->b, "queue") == 2);
    CHECK(queue_length(u->a, "queue") == 2);
}

static void pop_of_empty_queue_names_the_queue(struct users *u)
{
    CHECK_REFUSED(try_pop(u->a, "the-queue"), DIST_ERR_QUEUE_EMPTY, "the-queue\"");
    push_text(u->a, "the-queue", "item");
    await_writes(u->a);
    CHECK_OK(try_pop(u->b, "the-queue"));
    CHECK_STATUS(try_pop(u->b, "the-queue"), DIST_ERR_QUEUE_EMPTY);
    CHECK_STATUS(try_pop(u->a, "the-queue"), DIST_ERR_QUEUE_EMPTY);
}

static void empty_item_is_popped(struct users *u)
{
    CHECK_OK(dist_store_queue_push(u->a, "queue", DIST_TERMINATED, NULL, 0));
    push_text(u->a, "queue", "");
    CHECK(queue_length(u->a, "queue") == 2);
    CHECK(pop_returns(u->b, "queue", ""));
    CHECK_OK(try_pop(u->a, "queue"));
    CHECK(queue_length(u->b, "queue") == 0);
}

static void items_are_bytes_of_any_length(struct users *u)
{
    unsigned char *bytes = make_pattern(1000000);
    static const size_t lens[] = { 1, 256, 300000, 1000000 };
    for (size_t i = 0; i < 4; i++) {
        CHECK_OK(dist_store_queue_push(u->a, "queue", DIST_TERMINATED, bytes, lens[i]));
    }
    for (size_t i = 0; i < 4; i++) {
        dist_blob_t *blob = NULL;
        CHECK_OK(dist_store_queue_pop(u->b, "queue", DIST_TERMINATED, 1, &blob));
        CHECK(blob_is(blob, 0, bytes, lens[i]));
        CHECK_OK(dist_blob_release(blob));
    }
    free(bytes);
}

static void emptied_queue_is_usable(struct users *u)
{
    char text[16];
    for (int i = 0; i < 20; i++) {
        sprintf(text, "%d", i);
        push_text(u->a, "queue", text);
        if (i % 3 == 2) {
            push_text(u->a, "queue", "extra");
            CHECK(pop_returns(u->a, "queue", text));
            CHECK(pop_returns(u->b, "queue", "extra"));
        } else {
            CHECK(pop_returns(u->b, "queue", text));
        }
        CHECK(queue_length(u->a, "queue") == 0);
    }
}

static void queues_are_separate(struct users *u)
{
    static const char *const names[] = { "", "q", "q/", "q/1", "q/tail", "Q", "%", "queue/q", "\xff" };
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        push_text(u->a, names[i], names[i]);
    }
    await_writes(u->a);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        CHECK(queue_length(u->b, names[i]) == 1);
        CHECK(pop_returns(u->b, names[i], names[i]));
    }
}

static void queue_and_key_may_share_a_name(struct users *u)
{
    push_text(u->a, "name", "item");
    CHECK(exists(u->a, "name") == 0);
    CHECK(delete_existing(u->a, "name") == 0);
    set_text(u->a, "name", "value");
    CHECK(queue_length(u->a, "name") == 1);
    CHECK(has_text(u->b, "name", "value"));
    CHECK(delete_existing(u->a, "name") == 1);
    CHECK(queue_length(u->b, "name") == 1);
    CHECK(pop_returns(u->b, "name", "item"));
}

static void get_does_not_see_a_queue(struct users *u)
{
    dist_blob_t *blob = NULL;
    push_text(u->a, "name", "item");
    CHECK_OK(dist_store_set_timeout(u->a, 50));
    CHECK_REFUSED(dist_store_get(u->a, "name", DIST_TERMINATED, &blob), DIST_ERR_TIMEOUT, "name");
    CHECK(blob == NULL);
    set_text(u->a, "name", "value");
    CHECK(has_text(u->a, "name", "value"));
    CHECK(queue_length(u->a, "name") == 1);
}

static void pop_does_not_see_a_key(struct users *u)
{
    dist_blob_t *blob = NULL;
    set_text(u->a, "name", "value");
    CHECK_STATUS(try_pop(u->a, "name"), DIST_ERR_QUEUE_EMPTY);
    CHECK_OK(dist_store_set_timeout(u->a, 50));
    CHECK_REFUSED(dist_store_queue_pop(u->a, "name", DIST_TERMINATED, 1, &blob), DIST_ERR_TIMEOUT, "name");
    CHECK(blob == NULL);
    push_text(u->a, "name", "item");
    CHECK(pop_returns(u->a, "name", "item"));
    CHECK(has_text(u->a, "name", "value"));
}

static void queues_are_not_listed_as_keys(struct users *u)
{
    push_text(u->a, "queue", "item");
    CHECK(count_keys(u->a) == 0);
    CHECK(lists_exactly(u->a, NULL, 0));
    set_text(u->a, "queue", "v");
    CHECK(count_keys(u->a) == 1);
    CHECK(pop_returns(u->a, "queue", "item"));
    CHECK(count_keys(u->b) == 1);
}

static void wait_returns_for_a_nonempty_queue(struct users *u)
{
    const char *names[] = { "queue", "key" };
    struct call waiter;
    CHECK_STATUS(dist_store_wait(u->a, names, NULL, 1, 20), DIST_ERR_TIMEOUT);
    start_call(&waiter, call_wait, u->b, "queue", 0);
    push_text(u->a, "queue", "item");
    set_text(u->a, "key", "v");
    join_call(&waiter);
    CHECK(waiter.status == DIST_OK);
    CHECK_OK(dist_store_wait(u->a, names, NULL, 2, 0));
    CHECK(pop_returns(u->b, "queue", "item"));
    CHECK_STATUS(dist_store_wait(u->a, names, NULL, 2, 20), DIST_ERR_TIMEOUT);
}

/* ---- Pops that wait ---- */

static void pop_waits_for_an_item(struct users *u)
{
    struct call popper;
    for (int i = 0; i < 10; i++) {
        start_call(&popper, call_pop, i % 2 == 0 ? u->a : u->b, "queue", 0);
        CHECK(queue_length(u->a, "queue") == 0);
        /* A key with the name of the queue does not end the wait. */
        set_text(u->a, "queue", "key");
        push_text(u->a, "queue", "item");
        join_call(&popper);
        CHECK(popper.status == DIST_OK && strcmp(popper.text, "item") == 0);
        CHECK(queue_length(u->a, "queue") == 0);
    }
}

static dist_status_t forward_items(struct call *call)
{
    for (int64_t i = 0; i < call->argument; i++) {
        dist_blob_t *blob = NULL;
        const void *data = NULL;
        size_t len = 0;
        dist_status_t status = dist_store_queue_pop(call->store, "there", DIST_TERMINATED, 1, &blob);
        if (status != DIST_OK) {
            return status;
        }
        CHECK_OK(dist_blob_data(blob, 0, &data, &len));
        CHECK_OK(dist_store_queue_push(call->store, "back", DIST_TERMINATED, data, len));
        CHECK_OK(dist_blob_release(blob));
    }
    return DIST_OK;
}

/* Each user waits for the items of the other, in turn. */
static void users_exchange_items(struct users *u)
{
    struct call other;
    char text[16];
    start_call(&other, forward_items, u->b, NULL, 50);
    for (int i = 0; i < 50; i++) {
        sprintf(text, "%d", i);
        push_text(u->a, "there", text);
        CHECK(pop_returns(u->a, "back", text));
    }
    join_call(&other);
    CHECK(other.status == DIST_OK);
}

static void timed_out_pop_takes_nothing(struct users *u)
{
    dist_blob_t *blob = NULL;
    CHECK_OK(dist_store_set_timeout(u->b, 30));
    for (int i = 0; i < 3; i++) {
        CHECK_REFUSED(dist_store_queue_pop(u->b, "the-queue", DIST_TERMINATED, 1, &blob), DIST_ERR_TIMEOUT, "the-queue\"");
    }
    push_text(u->a, "the-queue", "1");
    push_text(u->a, "the-queue", "2");
    CHECK(queue_length(u->a, "the-queue") == 2);
    CHECK(pop_returns(u->a, "the-queue", "1"));
    CHECK_OK(dist_store_set_timeout(u->b, LIMIT_MS));
    CHECK(pop_returns(u->b, "the-queue", "2"));
}

#define CONSUMERS 6
#define EACH 20

/* Pops its share of the items, which must be in push order, and counts each under a separate
 * key. */
static dist_status_t consume_items(struct call *call)
{
    int before = -1;
    for (int64_t i = 0; i < call->argument; i++) {
        dist_blob_t *blob = NULL;
        const void *data = NULL;
        size_t len = 0;
        int64_t times = 0;
        char name[32];
        dist_status_t status = dist_store_queue_pop(call->store, call->key, DIST_TERMINATED, 1, &blob);
        if (status != DIST_OK) {
            return status;
        }
        CHECK_OK(dist_blob_data(blob, 0, &data, &len));
        int item = atoi(data);
        CHECK(item > before);
        before = item;
        sprintf(name, "taken/%d", item);
        CHECK_OK(dist_store_add(call->store, name, DIST_TERMINATED, 1, &times));
        CHECK(times == 1);
        CHECK_OK(dist_blob_release(blob));
    }
    return DIST_OK;
}

static void each_item_goes_to_one_consumer(struct users *u)
{
    struct call consumers[CONSUMERS];
    char text[32];
    for (int i = 0; i < CONSUMERS; i++) {
        start_call(&consumers[i], consume_items, i % 2 == 0 ? u->a : u->b, "queue", EACH);
    }
    for (int i = 0; i < CONSUMERS * EACH; i++) {
        sprintf(text, "%d", i);
        push_text(u->a, "queue", text);
    }
    for (int i = 0; i < CONSUMERS; i++) {
        join_call(&consumers[i]);
        CHECK(consumers[i].status == DIST_OK);
    }
    for (int i = 0; i < CONSUMERS * EACH; i++) {
        sprintf(text, "taken/%d", i);
        CHECK(exists(u->a, text) == 1);
    }
    CHECK(queue_length(u->a, "queue") == 0);
}

static void thousand_items_are_popped_in_order(struct users *u)
{
    char text[16];
    int right = 0;
    for (int i = 0; i < 1000; i++) {
        sprintf(text, "item %d", i);
        push_text(u->a, "queue", text);
    }
    CHECK(queue_length(u->a, "queue") == 1000);
    for (int i = 0; i < 1000; i++) {
        sprintf(text, "item %d", i);
        right += pop_returns(u->b, "queue", text);
    }
    CHECK(right == 1000);
    CHECK(queue_length(u->b, "queue") == 0);
}

/* ---- Barriers ---- */

static void barrier_of_zero_or_one_returns(struct users *u)
{
    CHECK_OK(dist_store_barrier(u->a, "nobody", DIST_TERMINATED, 0, 0));
    CHECK_OK(dist_store_barrier(u->a, "alone", DIST_TERMINATED, 1, 1000));
    CHECK_REFUSED(dist_store_barrier(u->a, "fewer", DIST_TERMINATED, -1, 0), DIST_ERR_INVALID_ARGUMENT, "world_size");
}

static dist_status_t count_and_enter_barrier(struct call *call)
{
    int64_t come;
    dist_status_t status = dist_store_add(call->store, "come", DIST_TERMINATED, 1, &come);
    if (status == DIST_OK) {
        status = call_barrier(call);
    }
    if (status == DIST_OK) {
        status = dist_store_add(call->store, "come", DIST_TERMINATED, 0, &come);
        CHECK(come == call->argument);
    }
    return status;
}

static void barrier_waits_for_all(struct users *u)
{
    struct call others[4];
    for (int i = 0; i < 4; i++) {
        start_call(&others[i], count_and_enter_barrier, i % 2 == 0 ? u->a : u->b, "barrier", 5);
    }
    CHECK(add_to(u->a, "come", 1) <= 5);
    CHECK_OK(dist_store_barrier(u->a, "barrier", DIST_TERMINATED, 5, 0));
    for (int i = 0; i < 4; i++) {
        join_call(&others[i]);
        CHECK(others[i].status == DIST_OK);
    }
}

static void completed_barrier_returns_immediately(struct users *u)
{
    struct call other;
    start_call(&other, call_barrier, u->b, "barrier", 2);
    CHECK_OK(dist_store_barrier(u->a, "barrier", DIST_TERMINATED, 2, 0));
    join_call(&other);
    CHECK(other.status == DIST_OK);
    CHECK_OK(dist_store_barrier(u->a, "barrier", DIST_TERMINATED, 2, 1000));
    CHECK_OK(dist_store_barrier(u->b, "barrier", DIST_TERMINATED, 2, 1000));
    /* Another name is another barrier. */
    CHECK_STATUS(dist_store_barrier(u->b, "barrier2", DIST_TERMINATED, 2, 20), DIST_ERR_TIMEOUT);
}

static void barrier_timeout_names_the_arrived_count(struct users *u)
{
    CHECK_REFUSED(dist_store_barrier(u->a, "the-barrier", DIST_TERMINATED, 2, 50), DIST_ERR_TIMEOUT, "1 of 2");
    CHECK_CONTAINS(dist_last_error(), "the-barrier\"");
    CHECK_REFUSED(dist_store_barrier(u->b, "three", DIST_TERMINATED, 3, 50), DIST_ERR_TIMEOUT, "1 of 3");
    CHECK_REFUSED(dist_store_barrier(u->a, "three", DIST_TERMINATED, 3, 50), DIST_ERR_TIMEOUT, "2 of 3");
}

static void timed_out_caller_stays_counted_in_barrier(struct users *u)
{
    CHECK_STATUS(dist_store_barrier(u->a, "barrier", DIST_TERMINATED, 2, 30), DIST_ERR_TIMEOUT);
    CHECK_OK(dist_store_barrier(u->b, "barrier", DIST_TERMINATED, 2, 0));
    CHECK_OK(dist_store_barrier(u->a, "barrier", DIST_TERMINATED, 2, 0));
}

static const struct check rows[] = {
    ROW(items_keep_their_order, 0),
    ROW(length_counts_items, 0),
    ROW(pop_of_empty_queue_names_the_queue, 0),
    ROW(empty_item_is_popped, 0),
    ROW(items_are_bytes_of_any_length, 0),
    ROW(emptied_queue_is_usable, 0),
    ROW(queues_are_separate, 0),
    ROW(queue_and_key_may_share_a_name, 0),
    ROW(get_does_not_see_a_queue, 0),
    ROW(pop_does_not_see_a_key, 0),
    ROW(queues_are_not_listed_as_keys, QUEUES_ARE_NOT_KEYS),
    ROW(wait_returns_for_a_nonempty_queue, WAIT_SEES_QUEUES),
    ROW(pop_waits_for_an_item, 0),
    ROW(users_exchange_items, 0),
    ROW(timed_out_pop_takes_nothing, 0),
    ROW(each_item_goes_to_one_consumer, 0),
    ROW(thousand_items_are_popped_in_order, 0),
    ROW(barrier_of_zero_or_one_returns, 0),
    ROW(barrier_waits_for_all, 0),
    ROW(completed_barrier_returns_immediately, 0),
    ROW(barrier_timeout_names_the_arrived_count, 0),
    ROW(timed_out_caller_stays_counted_in_barrier, 0),
};

const struct checks queue_checks = CHECKS(rows);
