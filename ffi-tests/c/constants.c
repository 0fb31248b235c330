/*
 * Types, operators and statuses have disjoint numbers. A constant of another family is refused
 * by every function, with the argument's name, and has no effect.
 */
#include "check.h"

#define INVALID DIST_ERR_INVALID_ARGUMENT
#define COUNT(list) (sizeof(list) / sizeof((list)[0]))

static const int32_t dtypes[] = { DIST_I8,   DIST_U8,   DIST_I16, DIST_U16, DIST_I32,  DIST_U32,
                                  DIST_I64,  DIST_U64,  DIST_F16, DIST_BF16, DIST_F32, DIST_F64,
                                  DIST_C64,  DIST_C128, DIST_BOOL, DIST_F8E4M3, DIST_F8E5M2, DIST_OPAQUE };
static const int32_t ops[] = { DIST_SUM,  DIST_PRODUCT, DIST_MIN,  DIST_MAX,       DIST_AVG,
                               DIST_BAND, DIST_BOR,     DIST_BXOR, DIST_PREMUL_SUM };
static const int32_t statuses[] = { DIST_OK,
                                    DIST_IN_PROGRESS,
                                    DIST_ERR_INVALID_ARGUMENT,
                                    DIST_ERR_INVALID_HANDLE,
                                    DIST_ERR_NOT_INITIALIZED,
                                    DIST_ERR_ALREADY_INITIALIZED,
                                    DIST_ERR_UNSUPPORTED,
                                    DIST_ERR_NOT_FOUND,
                                    DIST_ERR_QUEUE_EMPTY,
                                    DIST_ERR_NOT_A_NUMBER,
                                    DIST_ERR_TIMEOUT,
                                    DIST_ERR_PEER_FAILED,
                                    DIST_ERR_MISMATCH,
                                    DIST_ERR_ABORTED,
                                    DIST_ERR_CONNECTION,
                                    DIST_ERR_AUTH,
                                    DIST_ERR_DEADLOCK,
                                    DIST_ERR_OUT_OF_MEMORY,
                                    DIST_ERR_SYSTEM,
                                    DIST_ERR_BACKEND,
                                    DIST_ERR_INTERNAL };

static const struct family {
    const int32_t *numbers;
    size_t count;
} families[] = { { dtypes, COUNT(dtypes) }, { ops, COUNT(ops) }, { statuses, COUNT(statuses) } };

enum { DTYPES, OPS, STATUSES, FAMILIES };

static dist_group_t *world;
static dist_work_t *no_work;
static double a[2] = { 1, 2 };
static double b[2];
static const void *sends[1] = { a };
static void *recvs[1] = { b };
static const size_t counts[1] = { 1 };

/* Every function with a type argument, with a defined operator. */
#define CALLS_WITH_DTYPE(X) \
    X(dist_all_reduce(world, a, b, 1, it, DIST_SUM, NULL, NULL)) \
    X(dist_reduce(world, a, b, 1, it, DIST_SUM, 0, NULL, NULL)) \
    X(dist_scan(world, a, b, 1, it, DIST_SUM, NULL, NULL)) \
    X(dist_exscan(world, a, b, 1, it, DIST_SUM, NULL, NULL)) \
    X(dist_broadcast(world, b, 1, it, 0, NULL, NULL)) \
    X(dist_all_gather(world, a, b, 1, it, NULL, NULL)) \
    X(dist_reduce_scatter(world, a, b, 1, it, DIST_SUM, NULL, NULL)) \
    X(dist_gather(world, a, b, 1, it, 0, NULL, NULL)) \
    X(dist_scatter(world, a, b, 1, it, 0, NULL, NULL)) \
    X(dist_all_to_all(world, a, b, 1, it, NULL, NULL)) \
    X(dist_all_gather_v(world, a, recvs, counts, it, NULL, NULL)) \
    X(dist_gather_v(world, a, 1, recvs, counts, it, 0, NULL, NULL)) \
    X(dist_scatter_v(world, sends, counts, b, 1, it, 0, NULL, NULL)) \
    X(dist_reduce_scatter_v(world, sends, counts, b, it, DIST_SUM, NULL, NULL)) \
    X(dist_all_to_all_v(world, sends, counts, recvs, counts, it, NULL, NULL)) \
    X(dist_send(world, a, 1, it, 0, 0, NULL, &no_work)) \
    X(dist_recv(world, b, 1, it, 0, 0, NULL, NULL, &no_work)) \
    X(dist_backend_supports(world, DIST_KIND_ALL_REDUCE, it, DIST_SUM, DIST_DEVICE_HOST)) \
    X(dist_backend_supports(world, DIST_KIND_SEND, it, DIST_SUM, DIST_DEVICE_HOST))

/* Every function with an operator argument. */
#define CALLS_WITH_OP(X) \
    X(dist_all_reduce(world, a, b, 1, DIST_F64, it, NULL, NULL)) \
    X(dist_reduce(world, a, b, 1, DIST_F64, it, 0, NULL, NULL)) \
    X(dist_reduce_scatter(world, a, b, 1, DIST_F64, it, NULL, NULL)) \
    X(dist_scan(world, a, b, 1, DIST_F64, it, NULL, NULL)) \
    X(dist_exscan(world, a, b, 1, DIST_F64, it, NULL, NULL)) \
    X(dist_op_release(it)) \
    X(dist_reduce_scatter_v(world, sends, counts, b, DIST_F64, it, NULL, NULL)) \
    X(dist_backend_supports(world, DIST_KIND_ALL_REDUCE, DIST_F64, it, DIST_DEVICE_HOST))

#define CHECK_DTYPE_REFUSED(call) CHECK_REFUSED(call, INVALID, "argument dtype");
#define CHECK_OP_REFUSED(call) CHECK_REFUSED(call, INVALID, "argument op");

static void numbers_are_disjoint(void)
{
    size_t f, g, i, j;
    for (f = 0; f < FAMILIES; f++) {
        for (i = 0; i < families[f].count; i++) {
            for (g = 0; g < FAMILIES; g++) {
                for (j = 0; j < families[g].count; j++) {
                    CHECK((families[f].numbers[i] == families[g].numbers[j]) == (f == g && i == j));
                }
            }
        }
    }
}

static void other_families_are_refused(void)
{
    size_t f, i;
    for (f = 0; f < FAMILIES; f++) {
        for (i = 0; i < families[f].count; i++) {
            int32_t it = families[f].numbers[i];
            if (f != DTYPES) {
                CALLS_WITH_DTYPE(CHECK_DTYPE_REFUSED)
            }
            if (f != OPS) {
                CALLS_WITH_OP(CHECK_OP_REFUSED)
            }
            if (f != STATUSES) {
                CHECK(strcmp(dist_status_string(it), "unknown status") == 0);
            }
        }
    }
    CHECK(no_work == NULL);
}

int main(void)
{
    start_world();
    world = dist_world();
    numbers_are_disjoint();
    other_families_are_refused();
    /* The message names the constant that was passed. */
    CHECK_REFUSED(dist_all_reduce(world, a, b, 1, DIST_MAX, DIST_I32, NULL, NULL), INVALID, "operator DIST_MAX");
    CHECK_REFUSED(dist_all_reduce(world, a, b, 1, DIST_I32, DIST_F32, NULL, NULL), INVALID, "element type f32");
    CHECK(b[0] == 0 && b[1] == 0);
    CHECK_OK(dist_all_reduce(world, a, b, 2, DIST_F64, DIST_MAX, NULL, NULL));
    CHECK(b[0] == 1 && b[1] == 2);
    CHECK_OK(dist_finalize());
    return check_report();
}
