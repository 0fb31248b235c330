/*
 * Random programs that end: none of their calls may return DIST_ERR_DEADLOCK. Calls are examined for
 * deadlocks as soon as they wait for a millisecond. Each rank is a process with one or two threads.
 *
 * Usage: deadlock_random [first seed [number of seeds]]
 *
 * A seed determines a program: a list of steps that all ranks go through in the same order. A step
 * is a collective or a message, and it may end later, or with a timeout. Some steps look like
 * deadlocks: crossing sends that the library buffers, collectives that were issued before in
 * another order, and receives with short timeouts that wait for each other. Roots of large
 * collectives, probes, monitored barriers and creations of groups wait for other ranks, too.
 */
#define _XOPEN_SOURCE 700
#include "check.h"
#include "nap.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define RANKS 4
#define GROUPS 6
#define MOST_STEPS 10
#define MOST_ELEMENTS 50000
#define TAGS_PER_STEP 4
#define MUCH (2 << 20)

static const int32_t members[GROUPS][RANKS] = {
    { 0, 1, 2, 3 }, { 0, 1, -1, -1 }, { 2, 3, -1, -1 }, { 0, 2, -1, -1 }, { 1, 2, 3, -1 }, { 0, 3, -1, -1 }
};
static const int sizes[GROUPS] = { 4, 2, 2, 2, 3, 2 };

/* One thread of one rank, with groups and random numbers of its own. */
struct walker {
    int rank;
    unsigned first_seed, seeds;
    dist_group_t *groups[GROUPS];
    dist_group_t *messages;
    unsigned long random;
    int tag;
    dist_work_t *pending[MOST_STEPS * 2];
    int n_pending;
    int in[MOST_ELEMENTS], out[MOST_ELEMENTS], spare[MOST_STEPS * 2];
    int much_in[MUCH], much_out[MUCH];
};

static unsigned next_random(struct walker *self, unsigned limit)
{
    self->random = self->random * 6364136223846793005UL + 1442695040888963407UL;
    return (unsigned)(self->random >> 33) % limit;
}

static void send_to(struct walker *self, int to, int tag, size_t count, uint64_t flags)
{
    dist_call_options_t options = DIST_CALL_OPTIONS_INIT;
    options.flags |= flags;
    CHECK_OK(dist_send(self->messages, self->in, count, DIST_I32, to, tag, &options, NULL));
}

static void receive(struct walker *self, int from, int tag, size_t count)
{
    CHECK_OK(dist_recv(self->messages, self->out, count, DIST_I32, from, tag, NULL, NULL, NULL));
}

static void receive_in_vain(struct walker *self, int from, int tag, unsigned ms)
{
    dist_call_options_t options = DIST_CALL_OPTIONS_INIT;
    options.timeout_ms = ms;
    CHECK_STATUS(dist_recv(self->messages, self->out, 1, DIST_I32, from, tag, NULL, &options, NULL),
                 DIST_ERR_TIMEOUT);
}

static void reduce(struct walker *self, int group, size_t count, dist_work_t **work)
{
    int *out = work == NULL ? self->out : &self->spare[self->n_pending];
    if (self->groups[group] != NULL) {
        CHECK_OK(dist_all_reduce(self->groups[group], self->in, out, count, DIST_I32, DIST_MAX, NULL, work));
    }
}

/* Waits for one of the works after the other, as they end. */
static void wait_for_any(struct walker *self, int in_slices)
{
    size_t n = (size_t)self->n_pending, left = n, index;
    while (left > 0) {
        dist_status_t status = DIST_IN_PROGRESS;
        while (status == DIST_IN_PROGRESS) {
            status = in_slices ? dist_work_wait_any_slice(self->pending, n, LIMIT_MS, 1, &index)
                               : dist_work_wait_any(self->pending, n, 0, &index);
        }
        if (!CHECK_OK(status) || !CHECK(index < n)) {
            return;
        }
        CHECK_OK(dist_work_release(self->pending[index]));
        self->pending[index] = NULL;
        left--;
    }
}

static void wait_for_all(struct walker *self)
{
    unsigned way = next_random(self, 4);
    int i;
    if (way < 2) {
        wait_for_any(self, (int)way);
    }
    for (i = 0; i < self->n_pending && way >= 2; i++) {
        CHECK_OK(dist_work_wait(self->pending[i], i % 2 == 0 ? -1 : LIMIT_MS));
        CHECK_OK(dist_work_release(self->pending[i]));
    }
    self->n_pending = 0;
}

/* Keeps a work that the program waits for later. */
static void keep(struct walker *self, dist_work_t *work)
{
    if (work != NULL) {
        self->pending[self->n_pending++] = work;
    }
}

/* Two ranks exchange messages that cross. */
static void cross(struct walker *self, int a, int b, int tag, size_t count)
{
    int other = self->rank == a ? b : a;
    if (self->rank == a || self->rank == b) {
        send_to(self, other, tag, count, 0);
        receive(self, other, tag, count);
    }
}

/* The members of a group issue two collectives in opposite orders; one of them is asynchronous. */
static void cross_groups(struct walker *self, int one, int other)
{
    dist_work_t *work = NULL;
    int first = self->rank % 2 == 0 ? one : other, second = first == one ? other : one;
    reduce(self, first, 1, &work);
    keep(self, work);
    reduce(self, second, 1, NULL);
    wait_for_all(self);
}

/* A collective with data that no buffer of the library can hold. */
static void move_much(struct walker *self, int group, int root, unsigned kind)
{
    dist_group_t *g = self->groups[group];
    size_t block = MUCH / RANKS;
    if (g == NULL) {
        return;
    }
    if (kind == 0) {
        CHECK_OK(dist_broadcast(g, self->much_out, MUCH, DIST_I32, root, NULL, NULL));
    } else if (kind == 1) {
        CHECK_OK(dist_scatter(g, self->much_in, self->much_out, block, DIST_I32, root, NULL, NULL));
    } else if (kind == 2) {
        CHECK_OK(dist_gather(g, self->much_in, self->much_out, block, DIST_I32, root, NULL, NULL));
    } else {
        CHECK_OK(dist_reduce(g, self->much_in, self->much_out, MUCH, DIST_I32, DIST_MAX, root, NULL, NULL));
    }
}

/* Each rank sends to some ranks of the group: to those for which the sum of both ranks is not a
 * multiple of the divisor. */
static void send_to_some(struct walker *self, int group, size_t count, int divisor)
{
    const void *sends[RANKS];
    void *receives[RANKS];
    size_t counts[RANKS];
    int i, me = self->groups[group] != NULL ? (int)dist_get_rank(self->groups[group]) : -1;
    if (me < 0) {
        return;
    }
    for (i = 0; i < sizes[group]; i++) {
        counts[i] = (i + me) % divisor == 0 ? 0 : count / RANKS + 1;
        sends[i] = self->in;
        receives[i] = &self->much_out[(size_t)i * MOST_ELEMENTS];
    }
    CHECK_OK(dist_all_to_all_v(self->groups[group], sends, counts, receives, counts, DIST_I32, NULL, NULL));
}

/* The members of a group create another one. */
static void create(struct walker *self, int group, int by_members)
{
    dist_group_new_options_t options = DIST_GROUP_NEW_OPTIONS_INIT;
    dist_group_t *created = NULL;
    options.use_local_synchronization = by_members;
    if (self->groups[group] != NULL) {
        CHECK_OK(dist_group_new(self->groups[group], NULL, 0, &options, &created));
        CHECK_OK(dist_group_release(created));
    }
}

/* One rank sends, and another one finds the message by a probe. */
static void find(struct walker *self, int from, int to, int tag, int by_anyone)
{
    dist_recv_status_t found = DIST_RECV_STATUS_INIT;
    int source = by_anyone ? DIST_ANY_SOURCE : from;
    if (self->rank == from) {
        send_to(self, to, tag, 10, 0);
    } else if (self->rank == to) {
        CHECK_OK(dist_probe(self->messages, source, tag, &found, NULL, NULL));
        receive(self, source, tag, 10);
    }
}

static void step(struct walker *self)
{
    static const size_t counts[] = { 1, 10, 2000, MOST_ELEMENTS };
    int a = (int)next_random(self, RANKS), b = (a + 1 + (int)next_random(self, RANKS - 1)) % RANKS;
    int group = (int)next_random(self, GROUPS), other = (group + 1) % GROUPS, tag = self->tag;
    size_t count = counts[next_random(self, 4)];
    unsigned ms = 2 + next_random(self, 12), kind = next_random(self, 18);
    dist_work_t *work = NULL;
    self->tag += TAGS_PER_STEP;
    switch (kind) {
    case 0:
        reduce(self, group, count, NULL);
        break;
    case 1:
        if (self->groups[group] != NULL) {
            CHECK_OK(dist_broadcast(self->groups[group], self->out, count, DIST_I32,
                                    a % sizes[group], NULL, NULL));
        }
        break;
    case 2:
    case 3:
        if (self->rank == a) {
            send_to(self, b, tag, count, kind == 3 ? DIST_CALL_SYNCHRONOUS : 0);
        } else if (self->rank == b) {
            receive(self, a, tag, count);
        }
        break;
    case 4:
        if (self->rank == a) {
            receive_in_vain(self, b, tag, ms);
        }
        break;
    case 5:
        if (self->rank == a || self->rank == b) {
            receive_in_vain(self, self->rank == a ? b : a, tag, ms);
        }
        break;
    case 6:
        if (self->rank == b) {
            CHECK_OK(dist_recv(self->messages, &self->spare[self->n_pending], 1, DIST_I32, a, tag, NULL,
                               NULL, &work));
            keep(self, work);
        } else if (self->rank == a) {
            CHECK_OK(dist_send(self->messages, self->in, 1, DIST_I32, b, tag, NULL, &work));
            keep(self, work);
        }
        break;
    case 7:
        reduce(self, group, 1, &work);
        keep(self, work);
        break;
    case 8:
        if (self->rank == a) {
            nap_ms(ms);
        }
        break;
    case 9:
        cross(self, a, b, tag, 10);
        break;
    case 10:
        if (self->rank == a) {
            send_to(self, b, tag, count, 0);
        } else if (self->rank == b) {
            receive(self, DIST_ANY_SOURCE, tag, count);
        }
        break;
    case 11:
        find(self, a, b, tag, (int)(ms % 2));
        break;
    case 12:
        send_to_some(self, group, count, 1 + (int)(ms % 4));
        break;
    case 13:
        move_much(self, group, a % sizes[group], ms % 4);
        break;
    case 14:
        create(self, group, (int)(ms % 2));
        break;
    case 15:
        if (self->groups[group] != NULL) {
            CHECK_OK(dist_monitored_barrier(self->groups[group], -1, (int)(ms % 2), NULL, NULL));
        }
        break;
    case 16:
        wait_for_all(self);
        cross_groups(self, group, other);
        break;
    default:
        wait_for_all(self);
        break;
    }
}

static void *walk(void *argument)
{
    struct walker *self = argument;
    unsigned seed;
    for (seed = self->first_seed; seed < self->first_seed + self->seeds; seed++) {
        int i, failed = checks.failed;
        self->random = seed;
        (void)next_random(self, 1);
        for (i = 1 + (int)next_random(self, MOST_STEPS); i > 0; i--) {
            step(self);
        }
        wait_for_all(self);
        if (checks.failed != failed) {
            printf("the program of seed %u fails on rank %d\n", seed, self->rank);
            break;
        }
    }
    return NULL;
}

static struct walker *new_walker(int rank, unsigned first, unsigned seeds)
{
    struct walker *self = calloc(1, sizeof(*self));
    int g;
    REQUIRE(self != NULL);
    self->rank = rank;
    self->first_seed = first;
    self->seeds = seeds;
    REQUIRE_OK(dist_group_new(dist_world(), NULL, 0, NULL, &self->messages));
    for (g = 0; g < GROUPS; g++) {
        REQUIRE_OK(dist_group_new(dist_world(), members[g], (size_t)sizes[g], NULL, &self->groups[g]));
    }
    return self;
}

static void run_rank(int rank, int port, const char *backend_options, int threads, unsigned first, unsigned seeds)
{
    char url[40];
    dist_init_options_t options = DIST_INIT_OPTIONS_INIT;
    struct walker *walkers[2];
    pthread_t thread;
    (void)snprintf(url, sizeof(url), "tcp://127.0.0.1:%d", port);
    options.init_method = url;
    options.fields = DIST_FIELD_RANK;
    options.rank = rank;
    options.world_size = RANKS;
    options.backend_options = backend_options;
    REQUIRE(setenv("DIST_DEADLOCK_MS", "1", 1) == 0);
    REQUIRE_OK(dist_init(&options));
    walkers[0] = new_walker(rank, first, seeds);
    walkers[1] = new_walker(rank, first + seeds, seeds);
    if (threads == 2) {
        REQUIRE(pthread_create(&thread, NULL, walk, walkers[1]) == 0);
    }
    walk(walkers[0]);
    if (threads == 2) {
        REQUIRE(pthread_join(thread, NULL) == 0);
    }
    CHECK_OK(dist_finalize());
    free(walkers[0]);
    free(walkers[1]);
}

static int free_port(void)
{
    struct sockaddr_in address;
    socklen_t length = sizeof(address);
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    memset(&address, 0, sizeof(address));
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    REQUIRE(bind(listener, (struct sockaddr *)&address, sizeof(address)) == 0);
    REQUIRE(getsockname(listener, (struct sockaddr *)&address, &length) == 0);
    REQUIRE(close(listener) == 0);
    return ntohs(address.sin_port);
}

static void run_job(const char *backend_options, int threads, unsigned first, unsigned seeds)
{
    pid_t children[RANKS];
    int rank, port = free_port();
    for (rank = 0; rank < RANKS; rank++) {
        children[rank] = fork();
        REQUIRE(children[rank] >= 0);
        if (children[rank] == 0) {
            run_rank(rank, port, backend_options, threads, first, seeds);
            exit(check_report());
        }
    }
    for (rank = 0; rank < RANKS; rank++) {
        int status = 1;
        REQUIRE(waitpid(children[rank], &status, 0) == children[rank]);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
}

int main(int argc, char **argv)
{
    unsigned first = argc > 1 ? (unsigned)atoi(argv[1]) : 1, seeds = argc > 2 ? (unsigned)atoi(argv[2]) : 400;
    unsigned part = (seeds + 3) / 4;
    run_job("transport=shm", 1, first, part);
    run_job("transport=tcp", 1, first + part, part);
    run_job("transport=shm", 2, first + 2 * part, (part + 1) / 2);
    run_job("transport=tcp", 2, first + 3 * part, (part + 1) / 2);
    return check_report();
}
