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
    settle(u->a);
    for (size_t i = 0; i < 4; i++) {
        CHECK(pops_text(i % 2 == 0 ? u->b : u->a, "queue", items[i]));
    }
    CHECK_STATUS(try_pop(u->a, "queue"), DIST_ERR_QUEUE_EMPTY);
}

static void length_counts_items(struct users *u)
{
    CHECK(length_of(u->a, "queue") == 0);
    for (int i = 0; i < 3; i++) {
        push_text(u->a, "queue", "item");
        CHECK(length_of(u->a, "queue") == i + 1);
    }
    CHECK(length_of(u->b, "queue") == 3);
    CHECK(pops_text(u->b, "queue", "item"));
    CHECK(length_of(u->b, "queue") == 2);
    CHECK(length_of(u->a, "queue") == 2);
}

static void empty_queue_is_an_error_that_names_it(struct users *u)
{
    CHECK_REFUSED(try_pop(u->a, "the-queue"), DIST_ERR_QUEUE_EMPTY, "the-queue\"");
    push_text(u->a, "the-queue", "item");
    settle(u->a);
    CHECK_OK(try_pop(u->b, "the-queue"));
    CHECK_STATUS(try_pop(u->b, "the-queue"), DIST_ERR_QUEUE_EMPTY);
    CHECK_STATUS(try_pop(u->a, "the-queue"), DIST_ERR_QUEUE_EMPTY);
}

static void empty_item_is_an_item(struct users *u)
{
    CHECK_OK(dist_store_queue_push(u->a, "queue", DIST_TERMINATED, NULL, 0));
    push_text(u->a, "queue", "");
    CHECK(length_of(u->a, "queue") == 2);
    CHECK(pops_text(u->b, "queue", ""));
    CHECK_OK(try_pop(u->a, "queue"));
    CHECK(length_of(u->b, "queue") == 0);
}

static void items_are_bytes_of_any_length(struct users *u)
{
    unsigned char *bytes = pattern(1000000);
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

static void emptied_queue_goes_on(struct users *u)
{
    char text[16];
    for (int i = 0; i < 20; i++) {
        sprintf(text, "%d", i);
        push_text(u->a, "queue", text);
        if (i % 3 == 2) {
            push_text(u->a, "queue", "extra");
            CHECK(pops_text(u->a, "queue", text));
            CHECK(pops_text(u->b, "queue", "extra"));
        } else {
            CHECK(pops_text(u->b, "queue", text));
        }
        CHECK(length_of(u->a, "queue") == 0);
    }
}

static void queues_are_separate(struct users *u)
{
    static const char *const names[] = { "", "q", "q/", "q/1", "q/tail", "Q", "%", "queue/q", "\xff" };
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        push_text(u->a, names[i], names[i]);
    }
    settle(u->a);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        CHECK(length_of(u->b, names[i]) == 1);
        CHECK(pops_text(u->b, names[i], names[i]));
    }
}

static void queue_and_key_of_one_name_are_two_things(struct users *u)
{
    push_text(u->a, "name", "item");
    CHECK(exists(u->a, "name") == 0);
    CHECK(was_deleted(u->a, "name") == 0);
    set_text(u->a, "name", "value");
    CHECK(length_of(u->a, "name") == 1);
    CHECK(holds_text(u->b, "name", "value"));
    CHECK(was_deleted(u->a, "name") == 1);
    CHECK(length_of(u->b, "name") == 1);
    CHECK(pops_text(u->b, "name", "item"));
}

static void get_does_not_see_a_queue(struct users *u)
{
    dist_blob_t *blob = NULL;
    push_text(u->a, "name", "item");
    CHECK_OK(dist_store_set_timeout(u->a, 50));
    CHECK_REFUSED(dist_store_get(u->a, "name", DIST_TERMINATED, &blob), DIST_ERR_TIMEOUT, "name");
    CHECK(blob == NULL);
    set_text(u->a, "name", "value");
    CHECK(holds_text(u->a, "name", "value"));
    CHECK(length_of(u->a, "name") == 1);
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
    CHECK(pops_text(u->a, "name", "item"));
    CHECK(holds_text(u->a, "name", "value"));
}

static void queues_are_no_keys(struct users *u)
{
    push_text(u->a, "queue", "item");
    CHECK(count_keys(u->a) == 0);
    CHECK(lists(u->a, NULL, 0));
    set_text(u->a, "queue", "v");
    CHECK(count_keys(u->a) == 1);
    CHECK(pops_text(u->a, "queue", "item"));
    CHECK(count_keys(u->b) == 1);
}

static void wait_sees_a_queue_that_is_not_empty(struct users *u)
{
    const char *names[] = { "queue", "key" };
    struct aside waiter;
    CHECK_STATUS(dist_store_wait(u->a, names, NULL, 1, 20), DIST_ERR_TIMEOUT);
    begin(&waiter, waiting, u->b, "queue", 0);
    push_text(u->a, "queue", "item");
    set_text(u->a, "key", "v");
    end(&waiter);
    CHECK(waiter.status == DIST_OK);
    CHECK_OK(dist_store_wait(u->a, names, NULL, 2, 0));
    CHECK(pops_text(u->b, "queue", "item"));
    CHECK_STATUS(dist_store_wait(u->a, names, NULL, 2, 20), DIST_ERR_TIMEOUT);
}

/* ---- Pops that wait ---- */

static void pop_waits_for_an_item(struct users *u)
{
    struct aside popper;
    for (int i = 0; i < 10; i++) {
        begin(&popper, popping, i % 2 == 0 ? u->a : u->b, "queue", 0);
        CHECK(length_of(u->a, "queue") == 0);
        /* A key with the name of the queue does not end the wait. */
        set_text(u->a, "queue", "key");
        push_text(u->a, "queue", "item");
        end(&popper);
        CHECK(popper.status == DIST_OK && strcmp(popper.text, "item") == 0);
        CHECK(length_of(u->a, "queue") == 0);
    }
}

static dist_status_t passing_on(struct aside *aside)
{
    for (int64_t i = 0; i < aside->number; i++) {
        dist_blob_t *blob = NULL;
        const void *data = NULL;
        size_t len = 0;
        dist_status_t status = dist_store_queue_pop(aside->store, "there", DIST_TERMINATED, 1, &blob);
        if (status != DIST_OK) {
            return status;
        }
        CHECK_OK(dist_blob_data(blob, 0, &data, &len));
        CHECK_OK(dist_store_queue_push(aside->store, "back", DIST_TERMINATED, data, len));
        CHECK_OK(dist_blob_release(blob));
    }
    return DIST_OK;
}

/* Each user waits for the items of the other, in turn. */
static void two_pass_items_to_each_other(struct users *u)
{
    struct aside other;
    char text[16];
    begin(&other, passing_on, u->b, NULL, 50);
    for (int i = 0; i < 50; i++) {
        sprintf(text, "%d", i);
        push_text(u->a, "there", text);
        CHECK(pops_text(u->a, "back", text));
    }
    end(&other);
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
    CHECK(length_of(u->a, "the-queue") == 2);
    CHECK(pops_text(u->a, "the-queue", "1"));
    CHECK_OK(dist_store_set_timeout(u->b, LIMIT_MS));
    CHECK(pops_text(u->b, "the-queue", "2"));
}

#define CONSUMERS 6
#define EACH 20

/* Pops its share of the items, which must be in push order, and counts each under a separate
 * key. */
static dist_status_t consuming(struct aside *aside)
{
    int before = -1;
    for (int64_t i = 0; i < aside->number; i++) {
        dist_blob_t *blob = NULL;
        const void *data = NULL;
        size_t len = 0;
        int64_t times = 0;
        char name[32];
        dist_status_t status = dist_store_queue_pop(aside->store, aside->key, DIST_TERMINATED, 1, &blob);
        if (status != DIST_OK) {
            return status;
        }
        CHECK_OK(dist_blob_data(blob, 0, &data, &len));
        int item = atoi(data);
        CHECK(item > before);
        before = item;
        sprintf(name, "taken/%d", item);
        CHECK_OK(dist_store_add(aside->store, name, DIST_TERMINATED, 1, &times));
        CHECK(times == 1);
        CHECK_OK(dist_blob_release(blob));
    }
    return DIST_OK;
}

static void each_item_goes_to_one_of_many(struct users *u)
{
    struct aside consumers[CONSUMERS];
    char text[32];
    for (int i = 0; i < CONSUMERS; i++) {
        begin(&consumers[i], consuming, i % 2 == 0 ? u->a : u->b, "queue", EACH);
    }
    for (int i = 0; i < CONSUMERS * EACH; i++) {
        sprintf(text, "%d", i);
        push_text(u->a, "queue", text);
    }
    for (int i = 0; i < CONSUMERS; i++) {
        end(&consumers[i]);
        CHECK(consumers[i].status == DIST_OK);
    }
    for (int i = 0; i < CONSUMERS * EACH; i++) {
        sprintf(text, "taken/%d", i);
        CHECK(exists(u->a, text) == 1);
    }
    CHECK(length_of(u->a, "queue") == 0);
}

static void thousand_items(struct users *u)
{
    char text[16];
    int right = 0;
    for (int i = 0; i < 1000; i++) {
        sprintf(text, "item %d", i);
        push_text(u->a, "queue", text);
    }
    CHECK(length_of(u->a, "queue") == 1000);
    for (int i = 0; i < 1000; i++) {
        sprintf(text, "item %d", i);
        right += pops_text(u->b, "queue", text);
    }
    CHECK(right == 1000);
    CHECK(length_of(u->b, "queue") == 0);
}

/* ---- Barriers ---- */

static void barrier_of_nobody_and_of_one_is_over(struct users *u)
{
    CHECK_OK(dist_store_barrier(u->a, "nobody", DIST_TERMINATED, 0, 0));
    CHECK_OK(dist_store_barrier(u->a, "alone", DIST_TERMINATED, 1, 1000));
    CHECK_REFUSED(dist_store_barrier(u->a, "fewer", DIST_TERMINATED, -1, 0), DIST_ERR_INVALID_ARGUMENT, "world_size");
}

static dist_status_t meeting_counted(struct aside *aside)
{
    int64_t come;
    dist_status_t status = dist_store_add(aside->store, "come", DIST_TERMINATED, 1, &come);
    if (status == DIST_OK) {
        status = meeting(aside);
    }
    if (status == DIST_OK) {
        status = dist_store_add(aside->store, "come", DIST_TERMINATED, 0, &come);
        CHECK(come == aside->number);
    }
    return status;
}

static void barrier_holds_until_all_have_come(struct users *u)
{
    struct aside others[4];
    for (int i = 0; i < 4; i++) {
        begin(&others[i], meeting_counted, i % 2 == 0 ? u->a : u->b, "barrier", 5);
    }
    CHECK(sum_of(u->a, "come", 1) <= 5);
    CHECK_OK(dist_store_barrier(u->a, "barrier", DIST_TERMINATED, 5, 0));
    for (int i = 0; i < 4; i++) {
        end(&others[i]);
        CHECK(others[i].status == DIST_OK);
    }
}

static void used_barrier_is_passed_at_once(struct users *u)
{
    struct aside other;
    begin(&other, meeting, u->b, "barrier", 2);
    CHECK_OK(dist_store_barrier(u->a, "barrier", DIST_TERMINATED, 2, 0));
    end(&other);
    CHECK(other.status == DIST_OK);
    CHECK_OK(dist_store_barrier(u->a, "barrier", DIST_TERMINATED, 2, 1000));
    CHECK_OK(dist_store_barrier(u->b, "barrier", DIST_TERMINATED, 2, 1000));
    /* Another name is another barrier. */
    CHECK_STATUS(dist_store_barrier(u->b, "barrier2", DIST_TERMINATED, 2, 20), DIST_ERR_TIMEOUT);
}

static void timed_out_barrier_says_how_many_have_come(struct users *u)
{
    CHECK_REFUSED(dist_store_barrier(u->a, "the-barrier", DIST_TERMINATED, 2, 50), DIST_ERR_TIMEOUT, "1 of 2");
    CHECK_SAYS(dist_last_error(), "the-barrier\"");
    CHECK_REFUSED(dist_store_barrier(u->b, "three", DIST_TERMINATED, 3, 50), DIST_ERR_TIMEOUT, "1 of 3");
    CHECK_REFUSED(dist_store_barrier(u->a, "three", DIST_TERMINATED, 3, 50), DIST_ERR_TIMEOUT, "2 of 3");
}

static void who_timed_out_in_a_barrier_was_counted(struct users *u)
{
    CHECK_STATUS(dist_store_barrier(u->a, "barrier", DIST_TERMINATED, 2, 30), DIST_ERR_TIMEOUT);
    CHECK_OK(dist_store_barrier(u->b, "barrier", DIST_TERMINATED, 2, 0));
    CHECK_OK(dist_store_barrier(u->a, "barrier", DIST_TERMINATED, 2, 0));
}

static const struct check rows[] = {
    ROW(items_keep_their_order, 0),
    ROW(length_counts_items, 0),
    ROW(empty_queue_is_an_error_that_names_it, 0),
    ROW(empty_item_is_an_item, 0),
    ROW(items_are_bytes_of_any_length, 0),
    ROW(emptied_queue_goes_on, 0),
    ROW(queues_are_separate, 0),
    ROW(queue_and_key_of_one_name_are_two_things, 0),
    ROW(get_does_not_see_a_queue, 0),
    ROW(pop_does_not_see_a_key, 0),
    ROW(queues_are_no_keys, QUEUES_BESIDE_KEYS),
    ROW(wait_sees_a_queue_that_is_not_empty, WAIT_SEES_QUEUES),
    ROW(pop_waits_for_an_item, 0),
    ROW(two_pass_items_to_each_other, 0),
    ROW(timed_out_pop_takes_nothing, 0),
    ROW(each_item_goes_to_one_of_many, 0),
    ROW(thousand_items, 0),
    ROW(barrier_of_nobody_and_of_one_is_over, 0),
    ROW(barrier_holds_until_all_have_come, 0),
    ROW(used_barrier_is_passed_at_once, 0),
    ROW(timed_out_barrier_says_how_many_have_come, 0),
    ROW(who_timed_out_in_a_barrier_was_counted, 0),
};

const struct checks queue_checks = CHECKS(rows);
