/*
 * Shared parts of the store benchmarks, so that all implementations are measured in the same
 * way: processes, pinning, clock and rows. There is one program per implementation
 * (store_bench.c for libdist, store_bench_torch.cpp for torch). `cargo xtask bench-store`
 * compiles both, runs them alternately and compares them.
 *
 *     store_bench same|apart [--quick]   server on the first core; clients there or on the second
 *     store_bench free [--quick]         no pinning: the row with 128 processes
 *
 * The server is a separate process. Clients are forked while their parent has one thread; they
 * connect, prepare their data and warm up. Then all are released at the same time. A row is one
 * line: `row NAME VALUE`. Values are calls per second (get, add, wait, check: of all clients
 * together), milliseconds (set, processes) or microseconds (wake).
 *
 * The including file defines the functions that are declared first. All texts are made before
 * the measurement starts, in the form that the implementation needs.
 */
#ifndef STORE_BENCH_H
#define STORE_BENCH_H

#include "processes.h"

#include <sys/mman.h>

/* --- what an implementation defines --- */

/* A server with its store, or a client. */
struct store;
/* A list of keys, and a value. */
struct keys;
struct value;

static struct store *store_serve(int *port);
static struct store *store_open(int port);
static void store_close(struct store *store);
static struct keys *keys_new(const char *const *names, size_t n);
static struct value *value_new(size_t bytes);
static void store_set(struct store *store, struct keys *keys, size_t index, struct value *value);
/* A round trip after which all sets have taken effect. */
static void store_confirm(struct store *store);
/* Gets a value and returns its length. */
static size_t store_get(struct store *store, struct keys *keys, size_t index);
/* Gets all values and returns their total length. */
static size_t store_multi_get(struct store *store, struct keys *keys);
static void store_add(struct store *store, struct keys *keys);
/* Waits for all keys of the list. */
static void store_wait(struct store *store, struct keys *keys);
static int store_check(struct store *store, struct keys *keys);

/* --- server and clients --- */

enum { PROCESSES = 128, SETS = 1000, WARM_UP = 50, MAX_ROUNDS = 400, NAME_BYTES = 48 };

/* Memory that all processes share. Pipes order all accesses, so no process reads data that
 * another one may be writing. */
struct shared {
    int port;
    int64_t start_ns[PROCESSES];
    int64_t end_ns[PROCESSES];
    int64_t set_at;
    int64_t latency[MAX_ROUNDS];
};

static struct shared *shared;
/* The cores of server and clients; -1 for any core. */
static int server_core = -1, client_core = -1;

/* A server process that runs until its pipe is closed. */
struct server {
    pid_t process;
    int stop_fd;
};

static struct server server_start(void)
{
    struct server server;
    struct gate gate = gate_new();
    if (fork_child(&server.process, server_core)) {
        struct store *store = store_serve(&shared->port);
        gate_enter(&gate);
        gate_pass(&gate);
        store_close(store);
        _exit(0);
    }
    /* The server leaves its gate at the end. */
    char byte;
    close(gate.release[0]);
    close(gate.ready[1]);
    require(read(gate.ready[0], &byte, 1) == 1, "the server has died");
    close(gate.ready[0]);
    server.stop_fd = gate.release[1];
    return server;
}

static void server_stop(struct server server)
{
    close(server.stop_fd);
    require_success(server.process);
}

/* --- rows --- */

enum op { SET, GET, ADD, WAIT, CHECK, N_OPS };
static const char *const OP_NAMES[] = { "set", "get", "add", "wait", "check" };

struct job {
    enum op op;
    int clients;
    size_t bytes;
    int calls;
};

/* Returns `n` numbered names with this prefix. */
static struct keys *numbered_keys(const char *start, int index, size_t n)
{
    const char **names = (const char **)calloc(n, sizeof(*names));
    char *texts = (char *)calloc(n, NAME_BYTES);
    struct keys *keys;
    size_t i;
    require(names != NULL && texts != NULL, "no memory");
    for (i = 0; i < n; i++) {
        snprintf(texts + i * NAME_BYTES, NAME_BYTES, "%s/%d/%d", start, index, (int)i);
        names[i] = texts + i * NAME_BYTES;
    }
    keys = keys_new(names, n);
    free(texts);
    free(names);
    return keys;
}

static void run_call(struct store *store, const struct job *job, struct keys *keys, struct value *value, size_t i)
{
    switch (job->op) {
    case SET:
        store_set(store, keys, i % SETS, value);
        break;
    case GET:
        require(store_get(store, keys, 0) == job->bytes, "a value has the wrong length");
        break;
    case ADD:
        store_add(store, keys);
        break;
    case WAIT:
        store_wait(store, keys);
        break;
    default:
        require(store_check(store, keys), "a key is missing");
    }
}

static void run_client(const struct job *job, int index, struct gate *gate)
{
    struct store *store = store_open(shared->port);
    struct keys *keys = numbered_keys(OP_NAMES[job->op], index, job->op == SET ? SETS : 1);
    struct value *value = value_new(job->bytes);
    int i;
    if (job->op != ADD) {
        store_set(store, keys, 0, value);
    }
    for (i = 0; i < WARM_UP; i++) {
        run_call(store, job, keys, value, (size_t)i);
    }
    store_confirm(store);
    gate_pass(gate);
    shared->start_ns[index] = now_ns();
    for (i = 0; i < job->calls; i++) {
        run_call(store, job, keys, value, (size_t)i);
    }
    if (job->op == SET) {
        store_confirm(store);
    }
    shared->end_ns[index] = now_ns();
    store_close(store);
}

/* Returns the time from the first begin to the last end. */
static int64_t elapsed_ns(int clients)
{
    int64_t start_ns = shared->start_ns[0], end_ns = shared->end_ns[0];
    int i;
    for (i = 1; i < clients; i++) {
        start_ns = shared->start_ns[i] < start_ns ? shared->start_ns[i] : start_ns;
        end_ns = shared->end_ns[i] > end_ns ? shared->end_ns[i] : end_ns;
    }
    return end_ns - start_ns;
}

static void measure_calls(const struct job *job)
{
    pid_t children[PROCESSES];
    struct gate gate = gate_new();
    double seconds;
    int i;
    for (i = 0; i < job->clients; i++) {
        if (fork_child(&children[i], client_core)) {
            gate_enter(&gate);
            run_client(job, i, &gate);
            _exit(0);
        }
    }
    gate_open(&gate, job->clients);
    for (i = 0; i < job->clients; i++) {
        require_success(children[i]);
    }
    seconds = (double)elapsed_ns(job->clients) / 1e9;
    printf("row %s/%d/%d %.6g\n", OP_NAMES[job->op], job->clients, (int)job->bytes,
           job->op == SET ? seconds * 1e3 : job->clients * job->calls / seconds);
}

static int compare_int64(const void *one, const void *other)
{
    const int64_t a = *(const int64_t *)one, b = *(const int64_t *)other;
    return (a > b) - (a < b);
}

/* Waits in get, and reports each time through the pipe that it is about to wait. */
static void run_waiter(int rounds, int ready_fd, struct gate *gate)
{
    struct store *store = store_open(shared->port);
    struct keys *keys = numbered_keys("wake", 0, (size_t)rounds);
    char byte = 0;
    int i;
    store_confirm(store);
    gate_pass(gate);
    for (i = 0; i < rounds; i++) {
        require(write(ready_fd, &byte, 1) == 1, "the waker has gone");
        store_get(store, keys, (size_t)i);
        shared->latency[i] = now_ns() - shared->set_at;
    }
    store_close(store);
}

static void run_waker(int rounds, int ready_fd, struct gate *gate)
{
    /* The pause is long enough for the waiter to sleep, for any spin budget. */
    const struct timespec pause = { 0, 2000000 };
    struct store *store = store_open(shared->port);
    struct keys *keys = numbered_keys("wake", 0, (size_t)rounds);
    struct value *value = value_new(16);
    char byte;
    int i;
    store_confirm(store);
    gate_pass(gate);
    for (i = 0; i < rounds; i++) {
        require(read(ready_fd, &byte, 1) == 1, "the waiter has gone");
        nanosleep(&pause, NULL);
        shared->set_at = now_ns();
        store_set(store, keys, (size_t)i, value);
    }
    store_close(store);
}

static void measure_wake(int rounds)
{
    pid_t waiter, waker;
    struct gate gate = gate_new();
    int ready_pipe[2];
    require(pipe(ready_pipe) == 0, "pipe failed");
    if (fork_child(&waiter, client_core)) {
        gate_enter(&gate);
        close(ready_pipe[0]);
        run_waiter(rounds, ready_pipe[1], &gate);
        _exit(0);
    }
    if (fork_child(&waker, client_core)) {
        gate_enter(&gate);
        close(ready_pipe[1]);
        run_waker(rounds, ready_pipe[0], &gate);
        _exit(0);
    }
    close(ready_pipe[0]);
    close(ready_pipe[1]);
    gate_open(&gate, 2);
    require_success(waiter);
    require_success(waker);
    qsort(shared->latency, (size_t)rounds, sizeof(shared->latency[0]), compare_int64);
    printf("row wake %.6g\n", (double)shared->latency[rounds / 2] / 1e3);
}

/* Connects, sets a key and gets all keys; the measured part starts with the signal. */
static void run_process(const char *name, int index, int use_multi_get, struct gate *gate)
{
    struct keys *keys = numbered_keys(name, 0, PROCESSES);
    struct value *value = value_new(16);
    struct store *store;
    size_t bytes = 0, i;
    gate_pass(gate);
    store = store_open(shared->port);
    store_set(store, keys, (size_t)index, value);
    if (use_multi_get) {
        bytes = store_multi_get(store, keys);
    } else {
        for (i = 0; i < PROCESSES; i++) {
            bytes += store_get(store, keys, i);
        }
    }
    shared->end_ns[index] = now_ns();
    require(bytes == 16 * PROCESSES, "values have the wrong length");
    store_close(store);
}

static void measure_processes(const char *name, int use_multi_get)
{
    pid_t children[PROCESSES];
    struct gate gate = gate_new();
    int64_t start;
    int i;
    for (i = 0; i < PROCESSES; i++) {
        if (fork_child(&children[i], client_core)) {
            gate_enter(&gate);
            run_process(name, i, use_multi_get, &gate);
            _exit(0);
        }
    }
    start = gate_open(&gate, PROCESSES);
    for (i = 0; i < PROCESSES; i++) {
        require_success(children[i]);
        shared->start_ns[i] = start;
    }
    printf("row %s %.6g\n", name, (double)elapsed_ns(PROCESSES) / 1e6);
}

static void measure_pinned(int quick)
{
    static const int CLIENTS[] = { 1, 4 };
    static const size_t SIZES[] = { 16, 4096 };
    struct job job;
    int op, c, s;
    for (op = 0; op < N_OPS; op++) {
        for (c = 0; c < 2; c++) {
            for (s = 0; s < (op == ADD ? 1 : 2); s++) {
                job.op = (enum op)op;
                job.clients = CLIENTS[c];
                job.bytes = op == ADD ? 0 : SIZES[s];
                job.calls = op == SET ? SETS : quick ? 200 : 2000;
                measure_calls(&job);
            }
        }
    }
    measure_wake(quick ? 30 : 300);
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    int quick = argc > 2 && strcmp(argv[2], "--quick") == 0;
    struct server server;
    leader = getpid();
    shared = (struct shared *)mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    require(shared != MAP_FAILED, "mmap failed");
    if (strcmp(mode, "same") == 0) {
        server_core = client_core = nth_allowed_core(0);
    } else if (strcmp(mode, "apart") == 0) {
        server_core = nth_allowed_core(0);
        client_core = nth_allowed_core(1);
    } else {
        require(strcmp(mode, "free") == 0, "usage: store_bench same|apart|free [--quick]");
    }
    server = server_start();
    if (strcmp(mode, "free") == 0) {
        measure_processes("processes", 0);
        measure_processes("processes-multi-get", 1);
    } else {
        measure_pinned(quick);
    }
    server_stop(server);
    return 0;
}

#endif
