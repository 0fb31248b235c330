/*
 * What the conformance suite of stores stands on: the kinds of store, two users of a fresh one, expectations that name
 * the check and the kind, calls on threads of their own, and short ways to ask a store.
 *
 * A check is a function that gets two users of a store that nobody has used before. What one user does without an
 * answer (set, append, multi_set, queue_push) the other sees at the latest when the next call with an answer has
 * returned: a check that looks without waiting settles first.
 */
#ifndef STORE_SUITE_H
#define STORE_SUITE_H

#include <dist.h>

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

/* No call of a check waits longer than this, unless the check is about time. */
#define LIMIT_MS 30000
/* How much later than asked for a time-out may come. */
#define LATE_MS 2000
/* Enough for the path or the port that a store is found by. */
#define WHERE_BYTES 256

struct users;

/* What a kind of store can do beside what every store does, and what it refuses. */
struct kind {
    const char *name;
    /* Makes a store, writes where others find it, and gives its first user. */
    dist_store_t *(*make)(char *where);
    /* Another user of the same store, as independent of the first as the kind allows. */
    dist_store_t *(*join)(const char *where, dist_store_t *first);
    /* Removes what the store has left; NULL if that is nothing. */
    void (*clear)(const char *where);
    /* What is longer is refused; 0 for no limit. */
    size_t longest_key;
    size_t longest_value;
    unsigned abilities;
};

/* Other processes can join. */
#define BETWEEN_PROCESSES 1u
/* It has a host and a port. */
#define HAS_ADDRESS 2u
/* It has none. */
#define HAS_NO_ADDRESS 64u
/* dist_store_wait on a queue's name returns once there is an item. */
#define WAIT_SEES_QUEUES 4u
/* Queues are no keys: dist_store_num_keys does not count them. A store without queues of its own composes them of keys
 * (queue/NAME/...), and those are counted and listed like any others. */
#define QUEUES_BESIDE_KEYS 8u
/* Values, or keys, have a limit. */
#define HAS_VALUE_LIMIT 16u
#define HAS_KEY_LIMIT 32u
/* Keys may have zero bytes, or get to the store as C strings. */
#define HAS_ZERO_BYTES 128u
#define HAS_C_STRINGS 256u

extern const struct kind kinds[];
extern const size_t kind_count;

/* Two users of one store. */
struct users {
    const struct kind *kind;
    char where[WHERE_BYTES];
    dist_store_t *a;
    dist_store_t *b;
};

/* One check, and what a kind must be able to do for it. */
struct check {
    const char *name;
    void (*run)(struct users *users);
    unsigned needs;
};

#define ROW(name, needs) { #name, name, needs }

struct checks {
    const struct check *rows;
    size_t count;
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

/* What a process that process_checks has started does; returns its exit status. */
int work(const struct kind *kind, const char *role, const char *where, int number);

/* The path of this program. */
extern const char *suite_program;

/* ---- Expectations ---- */

/* What failures from now on are named after. */
void suite_begin(const char *check, const struct kind *kind);
/* How many expectations have failed since. */
int suite_failures(void);

int expect(int holds, const char *file, int line, const char *text);
int expect_status(dist_status_t got, dist_status_t wanted, const char *file, int line, const char *call);
int expect_word(const char *message, const char *word, int is_in, const char *file, int line);
void suite_gives_up(void);

#define CHECK(condition) expect((condition) != 0, __FILE__, __LINE__, #condition)
#define CHECK_STATUS(call, wanted) expect_status((call), (wanted), __FILE__, __LINE__, #call)
#define CHECK_OK(call) CHECK_STATUS(call, DIST_OK)
#define CHECK_SAYS(message, word) expect_word((message), (word), 1, __FILE__, __LINE__)
#define CHECK_DOES_NOT_SAY(message, word) expect_word((message), (word), 0, __FILE__, __LINE__)
/* A call is refused, with a message that speaks of something. */
#define CHECK_REFUSED(call, wanted, word) \
    do { \
        CHECK_STATUS(call, wanted); \
        CHECK_SAYS(dist_last_error(), word); \
    } while (0)
/* What the suite itself stands on. */
#define REQUIRE(condition) (CHECK(condition) ? (void)0 : suite_gives_up())

/* ---- Short ways to ask a store; what fails is a failed expectation ---- */

/* Everything this user did is now visible to the other. */
void settle(dist_store_t *store);
int exists(dist_store_t *store, const char *key);
int64_t count_keys(dist_store_t *store);
int64_t sum_of(dist_store_t *store, const char *key, int64_t amount);
int64_t length_of(dist_store_t *store, const char *queue);
int was_deleted(dist_store_t *store, const char *key);
void set_text(dist_store_t *store, const char *key, const char *text);
void push_text(dist_store_t *store, const char *queue, const char *text);
int holds_bytes(dist_store_t *store, const char *key, const void *bytes, size_t len);
int holds_text(dist_store_t *store, const char *key, const char *text);
/* compare_set gives this value back. */
int compares(dist_store_t *store, const char *key, const char *expected, const char *desired, const char *wanted);
/* A pop that waits gives this item. */
int pops_text(dist_store_t *store, const char *queue, const char *text);
/* Exactly these keys are listed, in whatever order. */
int lists(dist_store_t *store, const char *const *keys, size_t n);
/* An element of a blob is this; what is no element is not. */
int blob_is(const dist_blob_t *blob, size_t index, const void *bytes, size_t len);
/* `len` bytes of all values; released with free. */
unsigned char *pattern(size_t len);
int64_t now_us(void);
/* A time-out came in time: not before `timeout_ms`, and not much later. */
int in_time(int64_t took_us, int64_t timeout_ms);

/* ---- A call on a thread of its own ---- */

struct aside {
    pthread_t thread;
    dist_store_t *store;
    const char *key;
    /* A time-out, a world size, how often: what the act makes of it. */
    int64_t number;
    dist_status_t status;
    int64_t took_us;
    /* The message of a failure. */
    char error[512];
    /* What came back, if it is short. */
    char text[64];
};

typedef dist_status_t (*act_t)(struct aside *aside);

void begin(struct aside *aside, act_t act, dist_store_t *store, const char *key, int64_t number);
void end(struct aside *aside);

/* Acts: wait for the key with the number as time-out; get; pop, waiting; come to a barrier of that many. */
dist_status_t waiting(struct aside *aside);
dist_status_t getting(struct aside *aside);
dist_status_t popping(struct aside *aside);
dist_status_t meeting(struct aside *aside);

#endif
