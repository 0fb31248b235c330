/*
 * Calls that differ between the ranks are an error on every rank: in the call, in the next call, or
 * in dist_finalize. With the debug level DETAIL, they are an error in the call on every rank. The
 * cases are generated: every collective, every argument that must agree, as the last call or not.
 * A message that its receive cannot take is also an error of the sender.
 */
#define _XOPEN_SOURCE 700
#include "refusals.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define RANKS 3
#define COUNT 4
#define MOST_ELEMENTS (2 * COUNT * RANKS)
/* Between hosts, a rank may leave before another rank connects to it, which then waits until here. */
#define CALL_LIMIT_MS 5000

enum kind {
    ALL_REDUCE, REDUCE, BROADCAST, ALL_GATHER, REDUCE_SCATTER, SCAN, EXSCAN, GATHER, SCATTER,
    ALL_TO_ALL, ALL_GATHER_V, GATHER_V, SCATTER_V, REDUCE_SCATTER_V, ALL_TO_ALL_V, BARRIER,
    BROADCAST_BYTES, GATHER_BYTES, ALL_GATHER_BYTES, KINDS
};

static const char *const kind_names[KINDS] = {
    "all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter", "scan", "exscan", "gather",
    "scatter", "all_to_all", "all_gather_v", "gather_v", "scatter_v", "reduce_scatter_v",
    "all_to_all_v", "barrier", "broadcast_bytes", "gather_bytes", "all_gather_bytes"
};

/* The argument in which one rank differs. */
enum argument { KIND, DTYPE, OPERATOR, ROOT, COUNTS, LABEL, ARGUMENTS };

static const char *const argument_names[ARGUMENTS] = { "kind", "dtype", "op", "root", "count", "label" };

struct call {
    enum kind kind;
    dist_dtype_t dtype;
    dist_op_t op;
    int32_t root;
    size_t count;
    const char *label;
};

struct configuration {
    const char *name;
    /* The options of the back end of each rank. */
    const char *options[RANKS];
    int detail;
};

static int reduces(enum kind kind)
{
    return kind == ALL_REDUCE || kind == REDUCE || kind == REDUCE_SCATTER || kind == SCAN
        || kind == EXSCAN || kind == REDUCE_SCATTER_V;
}

static int has_root(enum kind kind)
{
    return kind == REDUCE || kind == BROADCAST || kind == GATHER || kind == SCATTER
        || kind == GATHER_V || kind == SCATTER_V || kind == BROADCAST_BYTES || kind == GATHER_BYTES;
}

static int is_on_bytes(enum kind kind)
{
    return kind == BROADCAST_BYTES || kind == GATHER_BYTES || kind == ALL_GATHER_BYTES;
}

/* Whether only two ranks compare the counts; then a third rank cannot get the error in the call. */
static int has_pairwise_counts(enum kind kind)
{
    return kind == GATHER_V || kind == SCATTER_V || kind == ALL_TO_ALL_V;
}

static int must_agree(enum kind kind, enum argument argument)
{
    switch (argument) {
    case DTYPE:
    case COUNTS:
        return kind != BARRIER && !is_on_bytes(kind);
    case OPERATOR:
        return reduces(kind);
    case ROOT:
        return has_root(kind);
    default:
        return 1;
    }
}

static void change(struct call *call, enum argument argument)
{
    switch (argument) {
    case KIND:
        call->kind = (enum kind)((call->kind + 1) % KINDS);
        break;
    case DTYPE:
        /* The two types have the same size, so no length gives the difference away. */
        call->dtype = DIST_I32;
        break;
    case OPERATOR:
        call->op = DIST_MAX;
        break;
    case ROOT:
        call->root = 1;
        break;
    case COUNTS:
        call->count = 2 * COUNT;
        break;
    default:
        call->label = "other";
        break;
    }
}

static dist_status_t run_on_bytes(const struct call *call, const dist_call_options_t *options)
{
    dist_group_t *world = dist_world();
    dist_blob_t *blob = NULL;
    dist_status_t status;
    if (call->kind == BROADCAST_BYTES) {
        status = dist_broadcast_bytes(world, "text", 4, call->root, &blob, options, NULL);
    } else if (call->kind == GATHER_BYTES) {
        status = dist_gather_bytes(world, "text", 4, call->root, &blob, options, NULL);
    } else {
        status = dist_all_gather_bytes(world, "text", 4, &blob, options, NULL);
    }
    (void)dist_blob_release(blob);
    return status;
}

static dist_status_t run_with_counts(const struct call *call, const dist_call_options_t *options)
{
    static int32_t in[MOST_ELEMENTS], out[MOST_ELEMENTS];
    dist_group_t *world = dist_world();
    const void *sends[RANKS];
    void *recvs[RANKS];
    size_t counts[RANKS];
    int r;
    for (r = 0; r < RANKS; r++) {
        counts[r] = call->count;
        sends[r] = in + call->count * (size_t)r;
        recvs[r] = out + call->count * (size_t)r;
    }
    switch (call->kind) {
    case ALL_GATHER_V:
        return dist_all_gather_v(world, in, recvs, counts, call->dtype, options, NULL);
    case GATHER_V:
        return dist_gather_v(world, in, call->count, recvs, counts, call->dtype, call->root, options,
                             NULL);
    case SCATTER_V:
        return dist_scatter_v(world, sends, counts, out, call->count, call->dtype, call->root,
                              options, NULL);
    case REDUCE_SCATTER_V:
        return dist_reduce_scatter_v(world, sends, counts, out, call->dtype, call->op, options, NULL);
    default:
        return dist_all_to_all_v(world, sends, counts, recvs, counts, call->dtype, options, NULL);
    }
}

static dist_status_t run_call(const struct call *call)
{
    static int32_t in[MOST_ELEMENTS], out[MOST_ELEMENTS];
    dist_group_t *world = dist_world();
    dist_call_options_t given = DIST_CALL_OPTIONS_INIT;
    const dist_call_options_t *options = &given;
    size_t count = call->count;
    given.label = call->label;
    switch (call->kind) {
    case ALL_REDUCE:
        return dist_all_reduce(world, in, out, count, call->dtype, call->op, options, NULL);
    case REDUCE:
        return dist_reduce(world, in, out, count, call->dtype, call->op, call->root, options, NULL);
    case BROADCAST:
        return dist_broadcast(world, out, count, call->dtype, call->root, options, NULL);
    case ALL_GATHER:
        return dist_all_gather(world, in, out, count, call->dtype, options, NULL);
    case REDUCE_SCATTER:
        return dist_reduce_scatter(world, in, out, count, call->dtype, call->op, options, NULL);
    case SCAN:
        return dist_scan(world, in, out, count, call->dtype, call->op, options, NULL);
    case EXSCAN:
        return dist_exscan(world, in, out, count, call->dtype, call->op, options, NULL);
    case GATHER:
        return dist_gather(world, in, out, count, call->dtype, call->root, options, NULL);
    case SCATTER:
        return dist_scatter(world, in, out, count, call->dtype, call->root, options, NULL);
    case ALL_TO_ALL:
        return dist_all_to_all(world, in, out, count, call->dtype, options, NULL);
    case BARRIER:
        return dist_barrier(world, options, NULL);
    default:
        return is_on_bytes(call->kind) ? run_on_bytes(call, options) : run_with_counts(call, options);
    }
}

/* A case, and the outcome on one rank. */
struct outcome {
    dist_status_t call;
    dist_status_t next;
    dist_status_t end;
    char message[400];
};

static void join(const struct configuration *configuration, const char *directory, int number, int rank)
{
    char url[128];
    dist_init_options_t options = DIST_INIT_OPTIONS_INIT;
    (void)snprintf(url, sizeof(url), "file://%s/%d", directory, number);
    options.init_method = url;
    options.fields = DIST_FIELD_RANK;
    options.rank = rank;
    options.world_size = RANKS;
    options.timeout_ms = CALL_LIMIT_MS;
    options.connect_timeout_ms = LIMIT_MS;
    options.backend_options = configuration->options[rank];
    REQUIRE_OK(dist_init(&options));
}

/* Runs a call that `odd_rank` calls with another argument. */
static struct outcome run_case(const struct call *call, enum argument argument, int odd_rank,
                               int is_last, int rank)
{
    struct outcome outcome = { DIST_OK, DIST_OK, DIST_OK, "" };
    struct call own = *call;
    if (rank == odd_rank) {
        change(&own, argument);
    }
    outcome.call = run_call(&own);
    if (!is_last) {
        outcome.next = dist_barrier(dist_world(), NULL, NULL);
    }
    outcome.end = dist_finalize();
    (void)dist_last_error_copy(outcome.message, sizeof(outcome.message));
    return outcome;
}

static void check_case(const struct configuration *configuration, const struct call *call,
                       enum argument argument, int odd_rank, int is_last, int rank,
                       const struct outcome *outcome)
{
    int has_error = outcome->call != DIST_OK || outcome->next != DIST_OK || outcome->end != DIST_OK;
    int in_call = !configuration->detail || outcome->call == DIST_ERR_MISMATCH
        || (argument == COUNTS && has_pairwise_counts(call->kind));
    if (!CHECK(has_error && in_call)) {
        (void)fprintf(stderr, "%s%s, %s, another %s on rank %d, %s: rank %d got %d, %d, %d (%s)\n",
                      configuration->name, configuration->detail ? ", DETAIL" : "",
                      kind_names[call->kind], argument_names[argument], odd_rank,
                      is_last ? "last call" : "not the last call", rank, (int)outcome->call,
                      (int)outcome->next, (int)outcome->end, outcome->message);
    }
}

static void run_rank(const struct configuration *configuration, const char *directory, int rank)
{
    int kind, argument, is_last, number = 0;
    REQUIRE_OK(dist_set_debug_level(configuration->detail ? DIST_DEBUG_DETAIL : DIST_DEBUG_OFF));
    for (kind = 0; kind < KINDS; kind++) {
        for (argument = 0; argument < ARGUMENTS; argument++) {
            if (!must_agree((enum kind)kind, (enum argument)argument)) {
                continue;
            }
            for (is_last = 0; is_last < 2; is_last++) {
                struct call call = { ALL_REDUCE, DIST_F32, DIST_SUM, 0, COUNT, "label" };
                /* The root of a rooted call is rank 0. */
                int odd_rank = (kind + argument + is_last) % RANKS;
                struct outcome outcome;
                call.kind = (enum kind)kind;
                join(configuration, directory, number, rank);
                outcome = run_case(&call, (enum argument)argument, odd_rank, is_last, rank);
                check_case(configuration, &call, (enum argument)argument, odd_rank, is_last, rank, &outcome);
                number++;
            }
        }
    }
}

/* Equal calls of all kinds are no mismatch, although a rank may go on before the others. */
static void equal_calls_are_no_mismatch(const struct configuration *configuration,
                                        const char *directory, int rank)
{
    struct call call = { ALL_REDUCE, DIST_F32, DIST_SUM, 1, COUNT, "label" };
    int kind, round;
    join(configuration, directory, -1, rank);
    for (round = 0; round < 3; round++) {
        for (kind = 0; kind < KINDS; kind++) {
            call.kind = (enum kind)kind;
            CHECK_OK(run_call(&call));
        }
    }
    CHECK_OK(dist_finalize());
}

#define MESSAGE_TAG 7

/* If a receive cannot take a message, its sender gets the error from the next message call, or from
 * dist_finalize if there is none. */
static void refused_messages_are_errors_of_the_sender(const struct configuration *configuration,
                                                      const char *directory, int rank)
{
    int number = -10, is_longer, is_last;
    for (is_longer = 0; is_longer < 2; is_longer++) {
        for (is_last = 0; is_last < 2; is_last++) {
            float values[2 * COUNT] = { 0 };
            dist_dtype_t dtype = is_longer ? DIST_F32 : DIST_I32;
            dist_status_t expected = is_last && rank == 0 ? DIST_ERR_MISMATCH : DIST_OK;
            join(configuration, directory, number--, rank);
            if (rank == 0) {
                CHECK_OK(dist_send(dist_world(), values, is_longer ? 2 * COUNT : COUNT, DIST_F32, 1,
                                   MESSAGE_TAG, NULL, NULL));
                if (!is_last) {
                    await_refusal(dist_world(), rank);
                }
            } else if (rank == 1) {
                CHECK(dist_recv(dist_world(), values, COUNT, dtype, 0, MESSAGE_TAG, NULL, NULL, NULL)
                      == DIST_ERR_MISMATCH);
            }
            if (!is_last) {
                CHECK_OK(dist_barrier(dist_world(), NULL, NULL));
            }
            CHECK(dist_finalize() == expected);
        }
    }
}

/* The ends of the pipes that order the ranks after a death. */
struct order {
    int die[2];
    int compare[2];
};

static void signal_end(const int ends[2])
{
    REQUIRE(write(ends[1], "x", 1) == 1);
}

static void await_end(const int ends[2])
{
    char byte;
    REQUIRE(read(ends[0], &byte, 1) == 1);
}

static dist_status_t run_gather(int root)
{
    struct call call = { GATHER, DIST_F32, DIST_SUM, 0, COUNT, "label" };
    call.root = root;
    return run_call(&call);
}

/* After the death of rank 1, rank 0 goes on with another call than rank 2 called before. */
static void call_after_a_death(const struct configuration *configuration, const char *directory,
                               const struct order *order, int rank)
{
    dist_status_t end;
    join(configuration, directory, -2, rank);
    CHECK_OK(dist_barrier(dist_world(), NULL, NULL));
    if (rank == 2) {
        CHECK_OK(run_gather(0));
        CHECK_OK(run_gather(1));
        signal_end(order->die);
        await_end(order->compare);
    } else if (rank == 1) {
        await_end(order->die);
        (void)raise(SIGKILL);
    } else {
        CHECK(run_gather(0) != DIST_OK);
        CHECK(dist_barrier(dist_world(), NULL, NULL) != DIST_OK);
    }
    end = dist_finalize();
    if (!CHECK(end != DIST_ERR_MISMATCH)) {
        char message[400];
        (void)dist_last_error_copy(message, sizeof(message));
        (void)fprintf(stderr, "%s, after a death: rank %d got %s\n", configuration->name, rank, message);
    }
    if (rank == 0) {
        signal_end(order->compare);
    }
}

static void calls_after_a_death_are_no_mismatch(const struct configuration *configuration,
                                                const char *directory)
{
    struct order order;
    pid_t children[RANKS];
    int rank;
    REQUIRE(pipe(order.die) == 0 && pipe(order.compare) == 0);
    for (rank = 0; rank < RANKS; rank++) {
        children[rank] = fork();
        REQUIRE(children[rank] >= 0);
        if (children[rank] == 0) {
            call_after_a_death(configuration, directory, &order, rank);
            exit(check_report());
        }
    }
    for (rank = 0; rank < RANKS; rank++) {
        int status = 1;
        REQUIRE(waitpid(children[rank], &status, 0) == children[rank]);
        CHECK(rank == 1 ? WIFSIGNALED(status) : WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
}

static void run_configuration(const struct configuration *configuration)
{
    char directory[] = "/tmp/dist-call-mismatch-XXXXXX", command[80];
    pid_t children[RANKS];
    int rank;
    REQUIRE(mkdtemp(directory) != NULL);
    if (!configuration->detail) {
        calls_after_a_death_are_no_mismatch(configuration, directory);
    }
    for (rank = 0; rank < RANKS; rank++) {
        children[rank] = fork();
        REQUIRE(children[rank] >= 0);
        if (children[rank] == 0) {
            equal_calls_are_no_mismatch(configuration, directory, rank);
            refused_messages_are_errors_of_the_sender(configuration, directory, rank);
            run_rank(configuration, directory, rank);
            exit(check_report());
        }
    }
    for (rank = 0; rank < RANKS; rank++) {
        int status = 1;
        REQUIRE(waitpid(children[rank], &status, 0) == children[rank]);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    (void)snprintf(command, sizeof(command), "rm -r %s", directory);
    CHECK(system(command) == 0);
}

int main(int argc, char **argv)
{
    static const struct configuration configurations[] = {
        { "shm", { "transport=shm", "transport=shm", "transport=shm" }, 0 },
        { "shm", { "transport=shm", "transport=shm", "transport=shm" }, 1 },
        { "tcp", { "transport=tcp", "transport=tcp", "transport=tcp" }, 0 },
        { "tcp", { "transport=tcp", "transport=tcp", "transport=tcp" }, 1 },
        { "two hosts", { "host_id=a", "host_id=a", "host_id=b" }, 0 },
        { "two hosts", { "host_id=a", "host_id=a", "host_id=b" }, 1 },
    };
    size_t i;
    for (i = 0; i < sizeof(configurations) / sizeof(configurations[0]); i++) {
        if (argc < 2 || strcmp(argv[1], configurations[i].name) == 0) {
            run_configuration(&configurations[i]);
        }
    }
    return check_report();
}
