/*
 * The framework of the store conformance suite. It has the kinds of stores, two users of a new
 * store, calls on separate threads, and short functions for store calls. A failed check prints its
 * name and the kind of store.
 *
 * A check is a function with two users of a new store. If a call has no response (set, append,
 * multi_set, queue_push), the other user sees its effect at the latest when the next call with a
 * response has returned. So a check that reads without a wait calls `await_writes` first.
 */
#ifndef STORE_SUITE_H
#define STORE_SUITE_H

#include <dist.h>

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

/* The time limit of every call in a check, except in checks of timeouts. */
#define LIMIT_MS 30000
/* The largest delay of a timeout. */
#define MAX_DELAY_MS 2000
/* The size of the path or port of a store. */
#define LOCATION_BYTES 256

struct users;

/* The optional features of a store kind, and its limits. */
struct kind {
    const char *name;
    /* Creates a store, writes its location, and returns the handle of its first user. */
    dist_store_t *(*make)(char *location);
    /* Creates another user of the same store, as independent of the first as the kind allows. */
    dist_store_t *(*join)(const char *location, dist_store_t *first);
    /* Removes the store's files; NULL if there are none. */
    void (*clear)(const char *location);
    /* The maximum lengths; 0 for no limit. */
    size_t max_key_len;
    size_t max_value_len;
    unsigned features;
};

/* Other processes can join. */
#define IS_MULTI_PROCESS 1u
/* The store has a host and a port. */
#define HAS_ADDRESS 2u
/* The store has no address. */
#define HAS_NO_ADDRESS 64u
/* dist_store_wait on a queue's name returns once there is an item. */
#define WAIT_SEES_QUEUES 4u
/* Queues are no keys: dist_store_num_keys does not count them. If a store composes queues from
 * keys (queue/NAME/...), these are counted and listed like other keys. */
#define QUEUES_ARE_NOT_KEYS 8u
/* Values or keys have a maximum length. */
#define HAS_VALUE_LIMIT 16u
#define HAS_KEY_LIMIT 32u
/* Keys may contain zero bytes, or are passed to the store as C strings. */
#define HAS_ZERO_BYTES 128u
#define HAS_C_STRINGS 256u

extern const struct kind kinds[];
extern const size_t kind_count;

/* Two users of one store. */
struct users {
    const struct kind *kind;
    char location[LOCATION_BYTES];
    dist_store_t *a;
    dist_store_t *b;
};

/* A check, and the features of a kind that it needs. */
struct check {
    const char *name;
    void (*run)(struct users *users);
    unsigned needs;
};

#define ROW(name, needs) { #name, name, needs }

struct checks {
    const struct check *rows;
    size_t count_up;
};

#define CHECKS(rows) { rows, sizeof(rows) / sizeof(rows[0]) }

extern const struct checks value_checks;
extern const struct checks number_checks;
extern const struct checks batch_checks;
extern const struct checks name_checks;
extern const struct checks wait_checks;
extern const struct checks time_checks;
extern const struct checks queue_checks;
extern const struct checks handle_checks;
extern const struct checks process_checks;

/* Runs the role of a process that process_checks has started; returns its exit status. */
int run_role(const struct kind *kind, const char *role, const char *location, int number);

/* The path of this program. */
extern const char *suite_program;

/* ---- Expectations ---- */

/* Sets the names for the following failures. */
void suite_begin(const char *check, const struct kind *kind);
/* Returns the number of failed expectations since suite_begin. */
int suite_failures(void);

int expect(int is_true, const char *file, int line, const char *text);
int expect_status(dist_status_t actual, dist_status_t expected, const char *file, int line, const char *call);
int expect_word(const char *message, const char *word, int is_in, const char *file, int line);
void suite_abort(void);

#define CHECK(condition) expect((condition) != 0, __FILE__, __LINE__, #condition)
#define CHECK_STATUS(call, expected) expect_status((call), (expected), __FILE__, __LINE__, #call)
#define CHECK_OK(call) CHECK_STATUS(call, DIST_OK)
#define CHECK_CONTAINS(message, word) expect_word((message), (word), 1, __FILE__, __LINE__)
#define CHECK_OMITS(message, word) expect_word((message), (word), 0, __FILE__, __LINE__)
/* Checks that a call is refused with this status and a message that contains a word. */
#define CHECK_REFUSED(call, expected, word) \
    do { \
        CHECK_STATUS(call, expected); \
        CHECK_CONTAINS(dist_last_error(), word); \
    } while (0)
/* Checks without which the suite cannot continue. */
#define REQUIRE(condition) (CHECK(condition) ? (void)0 : suite_abort())

/* ---- Short queries of a store; a failing call is a failed expectation ---- */

/* Makes all earlier changes of this user visible to the other user. */
void await_writes(dist_store_t *store);
int exists(dist_store_t *store, const char *key);
int64_t count_keys(dist_store_t *store);
int64_t add_to(dist_store_t *store, const char *key, int64_t amount);
int64_t queue_length(dist_store_t *store, const char *queue);
int delete_existing(dist_store_t *store, const char *key);
void set_text(dist_store_t *store, const char *key, const char *text);
void push_text(dist_store_t *store, const char *queue, const char *text);
int has_bytes(dist_store_t *store, const char *key, const void *bytes, size_t len);
int has_text(dist_store_t *store, const char *key, const char *text);
/* Checks that compare_set returns this value. */
int compare_set_returns(dist_store_t *store, const char *key, const char *expected, const char *desired,
                        const char *value_after);
/* Checks that a waiting pop returns this item. */
int pop_returns(dist_store_t *store, const char *queue, const char *text);
/* Checks that exactly these keys are listed, in any order. */
int lists_exactly(dist_store_t *store, const char *const *keys, size_t n);
/* Returns true if an element of a blob equals these bytes; false if there is no such element. */
int blob_is(const dist_blob_t *blob, size_t index, const void *bytes, size_t len);
/* Returns `len` bytes with all values, which the caller releases with free. */
unsigned char *make_pattern(size_t len);
int64_t now_us(void);
/* Returns true if a timeout came in time: at or after `timeout_ms`, at most MAX_DELAY_MS late. */
int is_in_time(int64_t elapsed_us, int64_t timeout_ms);

/* ---- A call on a thread of its own ---- */

struct call {
    pthread_t thread;
    dist_store_t *store;
    const char *key;
    /* An argument of the function: a timeout, a world size, or a count. */
    int64_t argument;
    dist_status_t status;
    int64_t elapsed_us;
    /* The message of a failure. */
    char error[512];
    /* The result, if it is short. */
    char text[64];
};

typedef dist_status_t (*call_fn_t)(struct call *call);

void start_call(struct call *call, call_fn_t function, dist_store_t *store, const char *key, int64_t number);
void join_call(struct call *call);

/* Acts: wait for the key with `argument` as timeout; get; pop with a wait; enter a barrier of
 * `argument` users. */
dist_status_t call_wait(struct call *call);
dist_status_t call_get(struct call *call);
dist_status_t call_pop(struct call *call);
dist_status_t call_barrier(struct call *call);

#endif
