/*
 * Calls on device memory that differ between the ranks. NCCL compares nothing, so the ranks compare
 * their calls when they release the group. With DIST_DEBUG_LEVEL=DETAIL, they compare each call
 * before it reaches NCCL, and all ranks get the error in the call.
 *
 *     mismatch [detail]
 */
#include "ranks.h"

#include <string.h>

#define COUNT 4

enum kind { ALL_REDUCE, REDUCE, BROADCAST, ALL_GATHER, REDUCE_SCATTER, KINDS };

static const char *const kind_names[KINDS] = { "all_reduce", "reduce", "broadcast", "all_gather",
                                               "reduce_scatter" };

/* The argument in which the last rank differs. Only a difference in the label reaches NCCL. */
enum argument { LABEL, KIND, DTYPE, OPERATOR, ROOT, COUNTS, ARGUMENTS };

static const char *const argument_names[ARGUMENTS] = { "label", "kind", "dtype", "op", "root", "count" };

struct call {
    enum kind kind;
    dist_dtype_t dtype;
    dist_op_t op;
    int32_t root;
    size_t count;
    const char *label;
};

static int has_detail;
static enum kind kind;
static enum argument argument;

static int is_argument_of_kind(void)
{
    switch (argument) {
    case OPERATOR:
        return kind == ALL_REDUCE || kind == REDUCE || kind == REDUCE_SCATTER;
    case ROOT:
        return kind == REDUCE || kind == BROADCAST;
    default:
        return 1;
    }
}

static void change(struct call *call)
{
    switch (argument) {
    case LABEL:
        call->label = "other";
        break;
    case KIND:
        call->kind = (enum kind)((call->kind + 1) % KINDS);
        break;
    case DTYPE:
        call->dtype = DIST_I32;
        break;
    case OPERATOR:
        call->op = DIST_MAX;
        break;
    case ROOT:
        call->root = 1;
        break;
    default:
        call->count = 2 * COUNT;
        break;
    }
}

static dist_status_t run_call(dist_group_t *group, const struct call *call, void *in, void *out)
{
    dist_call_options_t options = DIST_CALL_OPTIONS_INIT;
    size_t count = call->count;
    options.label = call->label;
    switch (call->kind) {
    case ALL_REDUCE:
        return dist_all_reduce(group, in, out, count, call->dtype, call->op, &options, NULL);
    case REDUCE:
        return dist_reduce(group, in, out, count, call->dtype, call->op, call->root, &options, NULL);
    case BROADCAST:
        return dist_broadcast(group, out, count, call->dtype, call->root, &options, NULL);
    case ALL_GATHER:
        return dist_all_gather(group, in, out, count, call->dtype, &options, NULL);
    default:
        return dist_reduce_scatter(group, in, out, count, call->dtype, call->op, &options, NULL);
    }
}

/* Rank 0 releases its group first, and finds no difference. The other ranks find it. */
static dist_status_t release_after_rank_0(struct rank *self, dist_group_t *group, const char *key)
{
    dist_status_t status;
    if (self->rank != 0) {
        REQUIRE_OK(dist_store_wait(self->store, &key, NULL, 1, LIMIT_MS));
    }
    status = dist_group_release(group);
    if (self->rank == 0) {
        REQUIRE_OK(dist_store_set(self->store, key, strlen(key), "", 0));
    }
    return status;
}

static void check_case(struct rank *self)
{
    struct call call = { kind, DIST_F32, DIST_SUM, 0, COUNT, "label" };
    dist_status_t in_call, at_release;
    dist_group_t *group = NULL;
    char name[64];
    void *in = device_memory(2 * COUNT * MAX_RANKS * sizeof(float), NULL);
    void *out = device_memory(2 * COUNT * MAX_RANKS * sizeof(float), NULL);
    (void)snprintf(name, sizeof name, "%s_%s", kind_names[kind], argument_names[argument]);
    REQUIRE_OK(make_group(self, name, &group));
    if (self->rank == self->size - 1) {
        change(&call);
    }
    in_call = run_call(group, &call, in, out);
    at_release = release_after_rank_0(self, group, name);
    if (!CHECK(in_call == (has_detail ? DIST_ERR_MISMATCH : DIST_OK)
               && at_release == (has_detail || self->rank != self->size - 1 ? DIST_OK : DIST_ERR_MISMATCH))) {
        printf("%s, another %s on the last rank: rank %d got %d in the call and %d at the release (%s)\n",
               kind_names[kind], argument_names[argument], self->rank, (int)in_call, (int)at_release,
               dist_last_error());
    }
    free_device(in);
    free_device(out);
}

int main(int argc, char **argv)
{
    has_detail = argc > 1 && strcmp(argv[1], "detail") == 0;
    REQUIRE_OK(dist_set_debug_level(has_detail ? DIST_DEBUG_DETAIL : DIST_DEBUG_OFF));
    for (kind = 0; kind < KINDS; kind++) {
        for (argument = 0; argument < (has_detail ? ARGUMENTS : KIND); argument++) {
            if (is_argument_of_kind()) {
                run_on_bare_ranks(2, "nccl", NULL, check_case);
            }
        }
    }
    check_nothing_leaked();
    return check_report();
}
