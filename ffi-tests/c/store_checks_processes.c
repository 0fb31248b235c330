/*
 * Several processes on one store. Each process is this program with its role on the command
 * line.
 */
#define _POSIX_C_SOURCE 200809L
#include "store_suite.h"

#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

extern char **environ;

#define PROCESSES 4
#define TIMES 50
#define PRODUCERS 2
#define CONSUMERS 3
#define ITEMS 60
#define NO_MORE "no more"

/* ---- What the processes do ---- */

static void count_up(dist_store_t *store)
{
    int64_t before = 0;
    for (int i = 0; i < TIMES; i++) {
        int64_t sum = add_to(store, "n", 1);
        CHECK(sum > before);
        before = sum;
    }
}

static void append_pieces(dist_store_t *store, int number)
{
    char piece[8];
    sprintf(piece, "<%04d>", number);
    for (int i = 0; i < TIMES; i++) {
        CHECK_OK(dist_store_append(store, "text", DIST_TERMINATED, piece, 6));
    }
    await_writes(store);
}

/* A process that has passed the barrier sees all earlier changes of the other processes. */
static void check_barriers(dist_store_t *store, int number)
{
    char key[32];
    for (int round = 0; round < 5; round++) {
        sprintf(key, "come/%d/%d", round, number);
        set_text(store, key, "");
        sprintf(key, "barrier/%d", round);
        CHECK_OK(dist_store_barrier(store, key, DIST_TERMINATED, PROCESSES, 0));
        for (int i = 0; i < PROCESSES; i++) {
            sprintf(key, "come/%d/%d", round, i);
            CHECK(exists(store, key) == 1);
        }
    }
}

static void elect_process(dist_store_t *store, int number)
{
    char name[16];
    dist_blob_t *blob = NULL;
    sprintf(name, "%d", number);
    CHECK_OK(dist_store_compare_set(store, "leader", DIST_TERMINATED, "", 0, name, strlen(name), &blob));
    if (blob_is(blob, 0, name, strlen(name))) {
        CHECK(add_to(store, "leaders", 1) == 1);
    }
    CHECK_OK(dist_blob_release(blob));
}

static void produce(dist_store_t *store, int number)
{
    char item[32];
    for (int i = 0; i < ITEMS; i++) {
        sprintf(item, "%d %d", number, i);
        push_text(store, "queue", item);
    }
    await_writes(store);
}

static void consume(dist_store_t *store)
{
    int last[PRODUCERS] = { -1, -1 };
    for (;;) {
        dist_blob_t *blob = NULL;
        const void *data = NULL;
        size_t len = 0;
        char key[64];
        int producer = 0;
        int item = 0;
        if (!CHECK_OK(dist_store_queue_pop(store, "queue", DIST_TERMINATED, 1, &blob))) {
            return;
        }
        CHECK_OK(dist_blob_data(blob, 0, &data, &len));
        int is_item = sscanf(data, "%d %d", &producer, &item) == 2;
        CHECK_OK(dist_blob_release(blob));
        if (!is_item) {
            return;
        }
        if (CHECK(producer >= 0 && producer < PRODUCERS)) {
            CHECK(item > last[producer]);
            last[producer] = item;
        }
        sprintf(key, "taken/%d/%d", producer, item);
        CHECK(add_to(store, key, 1) == 1);
    }
}

/* Passes a value round: each process waits for its own key and sets the next one's. */
static void pass_value_around(dist_store_t *store, int number)
{
    char key[32];
    for (int round = 0; round < 5; round++) {
        sprintf(key, "turn/%d", round * PROCESSES + number);
        CHECK(has_text(store, key, "yours"));
        sprintf(key, "turn/%d", round * PROCESSES + number + 1);
        set_text(store, key, "yours");
    }
    await_writes(store);
}

int run_role(const struct kind *kind, const char *role, const char *location, int number)
{
    char name[64];
    snprintf(name, sizeof(name), "process %d of %s", number, role);
    suite_begin(name, kind);
    dist_store_t *store = kind->join(location, NULL);
    CHECK_OK(dist_store_set_timeout(store, LIMIT_MS));
    if (strcmp(role, "count") == 0) {
        count_up(store);
    } else if (strcmp(role, "append") == 0) {
        append_pieces(store, number);
    } else if (strcmp(role, "meet") == 0) {
        check_barriers(store, number);
    } else if (strcmp(role, "elect") == 0) {
        elect_process(store, number);
    } else if (strcmp(role, "produce") == 0) {
        produce(store, number);
    } else if (strcmp(role, "consume") == 0) {
        consume(store);
    } else if (strcmp(role, "pass") == 0) {
        pass_value_around(store, number);
    } else {
        CHECK(!"a role that exists");
    }
    CHECK_OK(dist_store_release(store));
    return suite_failures() != 0;
}

/* ---- Starting them ---- */

static pid_t start_process(const struct users *u, const char *role, int number)
{
    char text[16];
    pid_t pid = 0;
    sprintf(text, "%d", number);
    char *words[] = { (char *)suite_program, (char *)u->kind->name, (char *)role, (char *)u->location, text, NULL };
    REQUIRE(posix_spawn(&pid, suite_program, NULL, NULL, words, environ) == 0);
    return pid;
}

static void wait_for_process(pid_t pid)
{
    int status = -1;
    CHECK(waitpid(pid, &status, 0) == pid);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void run_processes(const struct users *u, const char *role)
{
    pid_t pids[PROCESSES];
    for (int i = 0; i < PROCESSES; i++) {
        pids[i] = start_process(u, role, i);
    }
    for (int i = 0; i < PROCESSES; i++) {
        wait_for_process(pids[i]);
    }
}

/* ---- The checks ---- */

static void concurrent_process_adds_are_not_lost(struct users *u)
{
    run_processes(u, "count");
    CHECK(add_to(u->a, "n", 0) == PROCESSES * TIMES);
    CHECK(add_to(u->b, "n", 1) == PROCESSES * TIMES + 1);
}

static void concurrent_process_appends_are_not_lost(struct users *u)
{
    dist_blob_t *blob = NULL;
    const void *data = NULL;
    size_t len = 0;
    int pieces[PROCESSES] = { 0 };
    run_processes(u, "append");
    CHECK_OK(dist_store_get(u->a, "text", DIST_TERMINATED, &blob));
    CHECK_OK(dist_blob_data(blob, 0, &data, &len));
    CHECK(len == PROCESSES * TIMES * 6);
    for (size_t at = 0; at + 6 <= len; at += 6) {
        int number = -1;
        char join_call = 0;
        sscanf((const char *)data + at, "<%4d%c", &number, &join_call);
        if (CHECK(join_call == '>' && number >= 0 && number < PROCESSES)) {
            pieces[number]++;
        }
    }
    for (int i = 0; i < PROCESSES; i++) {
        CHECK(pieces[i] == TIMES);
    }
    CHECK_OK(dist_blob_release(blob));
}

static void processes_meet_in_barriers(struct users *u)
{
    run_processes(u, "meet");
}

static void one_of_many_processes_is_elected(struct users *u)
{
    run_processes(u, "elect");
    CHECK(add_to(u->a, "leaders", 0) == 1);
    CHECK(exists(u->a, "leader") == 1);
}

static void processes_take_each_item_once(struct users *u)
{
    pid_t producers[PRODUCERS];
    pid_t consumers[CONSUMERS];
    char key[32];
    for (int i = 0; i < CONSUMERS; i++) {
        consumers[i] = start_process(u, "consume", i);
    }
    for (int i = 0; i < PRODUCERS; i++) {
        producers[i] = start_process(u, "produce", i);
    }
    for (int i = 0; i < PRODUCERS; i++) {
        wait_for_process(producers[i]);
    }
    for (int i = 0; i < CONSUMERS; i++) {
        push_text(u->a, "queue", NO_MORE);
    }
    await_writes(u->a);
    for (int i = 0; i < CONSUMERS; i++) {
        wait_for_process(consumers[i]);
    }
    int n_taken = 0;
    for (int i = 0; i < PRODUCERS * ITEMS; i++) {
        sprintf(key, "taken/%d/%d", i / ITEMS, i % ITEMS);
        n_taken += exists(u->b, key) == 1;
    }
    CHECK(n_taken == PRODUCERS * ITEMS);
    CHECK(queue_length(u->a, "queue") == 0);
}

static void processes_wake_each_other(struct users *u)
{
    char key[32];
    set_text(u->a, "turn/0", "yours");
    await_writes(u->a);
    run_processes(u, "pass");
    sprintf(key, "turn/%d", 5 * PROCESSES);
    CHECK(has_text(u->a, key, "yours"));
}

static const struct check rows[] = {
    ROW(concurrent_process_adds_are_not_lost, IS_MULTI_PROCESS),
    ROW(concurrent_process_appends_are_not_lost, IS_MULTI_PROCESS),
    ROW(processes_meet_in_barriers, IS_MULTI_PROCESS),
    ROW(one_of_many_processes_is_elected, IS_MULTI_PROCESS),
    ROW(processes_take_each_item_once, IS_MULTI_PROCESS),
    ROW(processes_wake_each_other, IS_MULTI_PROCESS),
};

const struct checks process_checks = CHECKS(rows);
