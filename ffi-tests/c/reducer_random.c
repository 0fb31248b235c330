/*
 * Random trainings in host memory, over each transport and mixture of hosts. Arguments: the first
 * seed and the number of seeds; or "for" and a number of seconds, from a seed that the clock
 * gives.
 */
#include "reducer_random.h"

#include <time.h>

static void *memory_new(int rank, size_t bytes)
{
    void *memory = malloc(bytes);
    (void)rank;
    REQUIRE(memory != NULL);
    memset(memory, 0, bytes);
    return memory;
}

static void memory_free(int rank, void *memory)
{
    (void)rank;
    free(memory);
}

static void memory_write(int rank, void *to, const void *from, size_t bytes)
{
    (void)rank;
    memcpy(to, from, bytes);
}

static void memory_read(int rank, void *to, const void *from, size_t bytes)
{
    (void)rank;
    memcpy(to, from, bytes);
}

static void memory_place(int rank, dist_param_t *param)
{
    (void)rank;
    (void)param;
}

struct rank {
    struct trainer trainer;
    dist_store_t *store;
    char backend_options[64];
};

static void *rank_main(void *arg)
{
    struct rank *me = arg;
    dist_group_options_t options = DIST_GROUP_OPTIONS_INIT;
    options.store = me->store;
    options.name = "random";
    options.fields = DIST_FIELD_RANK;
    options.rank = me->trainer.rank;
    options.world_size = me->trainer.plan->size;
    options.backend_options = me->backend_options;
    options.connect_timeout_ms = LIMIT_MS;
    options.timeout_ms = LIMIT_MS;
    REQUIRE_OK(dist_group_create(&options, &me->trainer.group));
    train(&me->trainer);
    return NULL;
}

static void run_seed(uint64_t seed)
{
    static const char *const transports[] = { "inproc", "shm", "tcp", "mixed" };
    const char *transport = transports[seed % 4];
    struct plan *plan = new_plan(seed, 1);
    struct rank ranks[RANKS];
    pthread_t threads[RANKS];
    dist_store_t *store = new_store();
    int r, failed = checks.failed;
    for (r = 0; r < plan->size; r++) {
        struct rank rank;
        memset(&rank, 0, sizeof(rank));
        rank.trainer.plan = plan;
        rank.trainer.rank = r;
        rank.store = store;
        if (strcmp(transport, "mixed") == 0) {
            sprintf(rank.backend_options, "host_id=h%d", (int)((seed / 4) % 2 ? r % 2 : r / 2));
        } else {
            sprintf(rank.backend_options, "transport=%s", transport);
        }
        ranks[r] = rank;
    }
    for (r = 0; r < plan->size; r++) {
        REQUIRE(pthread_create(&threads[r], NULL, rank_main, &ranks[r]) == 0);
    }
    for (r = 0; r < plan->size; r++) {
        REQUIRE(pthread_join(threads[r], NULL) == 0);
    }
    CHECK_OK(dist_store_release(store));
    if (checks.failed != failed) {
        printf("seed %lu fails: %d ranks over %s\n", (unsigned long)seed, plan->size, transport);
        exit(1);
    }
    free(plan);
}

int main(int argc, char **argv)
{
    int is_timed = argc > 2 && strcmp(argv[1], "for") == 0;
    time_t start = time(NULL), limit = is_timed ? atoi(argv[2]) : 0;
    uint64_t first = is_timed ? (uint64_t)start * 1000 : argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    uint64_t seeds = argc > 2 ? strtoull(argv[2], NULL, 10) : 200, seed;
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (seed = first; is_timed ? time(NULL) - start < limit : seed < first + seeds; seed++) {
        run_seed(seed);
        if ((seed - first + 1) % 100 == 0) {
            printf("%lu seeds\n", (unsigned long)(seed - first + 1));
        }
    }
    printf("%lu seeds from %lu\n", (unsigned long)(seed - first), (unsigned long)first);
    return check_report();
}
