/*
 * Runs ranks as threads of the test, over each transport and in groups of each size.
 */
#ifndef RANKS_H
#define RANKS_H

#include "check.h"

#define MOST_RANKS 4

struct rank {
    dist_store_t *store;
    dist_group_t *group;
    const char *transport;
    int rank;
    int size;
    void (*body)(const struct rank *me);
};

static void *rank_main(void *arg)
{
    struct rank *me = arg;
    char options_text[32];
    dist_group_options_t options = DIST_GROUP_OPTIONS_INIT;
    sprintf(options_text, "transport=%s", me->transport);
    options.store = me->store;
    options.name = "ranks";
    options.fields = DIST_FIELD_RANK;
    options.rank = me->rank;
    options.world_size = me->size;
    options.backend_options = options_text;
    options.connect_timeout_ms = LIMIT_MS;
    options.timeout_ms = LIMIT_MS;
    REQUIRE_OK(dist_group_create(&options, &me->group));
    me->body(me);
    CHECK_OK(dist_group_release(me->group));
    return NULL;
}

static void run_ranks(const char *transport, int size, void (*body)(const struct rank *me))
{
    struct rank ranks[MOST_RANKS];
    pthread_t threads[MOST_RANKS];
    dist_store_t *store = new_store();
    int r;
    for (r = 0; r < size; r++) {
        struct rank rank = { store, NULL, transport, r, size, body };
        ranks[r] = rank;
        REQUIRE(pthread_create(&threads[r], NULL, rank_main, &ranks[r]) == 0);
    }
    for (r = 0; r < size; r++) {
        REQUIRE(pthread_join(threads[r], NULL) == 0);
    }
    CHECK_OK(dist_store_release(store));
}

/* Creates a group of the first `size` ranks. */
static inline dist_group_t *make_group(const struct rank *me, const char *name, int size)
{
    char options_text[32];
    dist_group_options_t options = DIST_GROUP_OPTIONS_INIT;
    dist_group_t *group = NULL;
    sprintf(options_text, "transport=%s", me->transport);
    options.store = me->store;
    options.name = name;
    options.fields = DIST_FIELD_RANK;
    options.rank = me->rank;
    options.world_size = size;
    options.backend_options = options_text;
    options.connect_timeout_ms = LIMIT_MS;
    options.timeout_ms = LIMIT_MS;
    REQUIRE_OK(dist_group_create(&options, &group));
    return group;
}

/* Runs the body on 1 to 4 ranks over each transport. */
static inline void run_everywhere(void (*body)(const struct rank *me))
{
    static const char *const transports[] = { "inproc", "shm", "tcp" };
    size_t t;
    int size;
    for (t = 0; t < sizeof(transports) / sizeof(transports[0]); t++) {
        for (size = 1; size <= MOST_RANKS; size++) {
            run_ranks(transports[t], size, body);
        }
    }
}

#endif
