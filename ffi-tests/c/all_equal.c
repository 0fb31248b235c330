/*
 * The comparison of bytes of all ranks (dist_all_equal): all ranks get the same answer for any
 * difference.
 */
#include "ranks.h"

#define LONG_BYTES 100000

static void check_all_equal(const struct rank *me, const void *bytes, size_t len, int expected)
{
    int32_t equal = 7, differing = 7;
    CHECK_OK(dist_all_equal(me->group, bytes, len, &equal, &differing, NULL));
    CHECK(equal == (expected < 0));
    CHECK(differing == expected);
}

static void run_all_checks(const struct rank *me)
{
    static const char long_text[LONG_BYTES];
    char own_bytes[LONG_BYTES];
    int r;
    memset(own_bytes, 0, sizeof(own_bytes));
    check_all_equal(me, NULL, 0, -1);
    check_all_equal(me, "same", 4, -1);
    check_all_equal(me, own_bytes, LONG_BYTES, -1);
    for (r = 0; r < me->size; r++) {
        /* One bit of the last byte differs on rank r. If rank 0 differs, rank 1 is reported. */
        int expected = me->size == 1 ? -1 : r == 0 ? 1 : r;
        own_bytes[LONG_BYTES - 1] = (char)(me->rank == r);
        check_all_equal(me, own_bytes, LONG_BYTES, expected);
        /* The length differs on one rank. */
        check_all_equal(me, long_text, LONG_BYTES - (size_t)(me->rank == r), expected);
        check_all_equal(me, "", (size_t)(me->rank == r), expected);
    }
    /* Two ranks differ, and the lower one is reported. */
    own_bytes[0] = (char)(me->rank >= 2 ? me->rank : 0);
    own_bytes[LONG_BYTES - 1] = 0;
    check_all_equal(me, own_bytes, LONG_BYTES, me->size > 2 ? 2 : -1);
    /* Both outputs are optional. */
    CHECK_OK(dist_all_equal(me->group, "x", 1, NULL, NULL, NULL));
}

/* The comparison has a position in the order of collectives like any other call. */
static void check_order_with_collectives(const struct rank *me)
{
    float value = (float)me->rank, sum = 0;
    dist_work_t *work = NULL;
    CHECK_OK(dist_all_reduce(me->group, &value, &sum, 1, DIST_F32, DIST_SUM, NULL, &work));
    check_all_equal(me, "x", 1, -1);
    CHECK_OK(dist_work_wait(work, 0));
    CHECK_OK(dist_work_release(work));
    CHECK(sum == 3);
}

static void check_refusals(const struct rank *me)
{
    dist_call_options_t options = DIST_CALL_OPTIONS_INIT;
    dist_group_t *const groups[1] = { me->group };
    int32_t equal = 7;
    CHECK_REFUSED(dist_all_equal(me->group, NULL, 1, &equal, NULL, NULL), DIST_ERR_INVALID_ARGUMENT, "bytes");
    options.stream = &options;
    CHECK_REFUSED(dist_all_equal(me->group, "x", 1, &equal, NULL, &options), DIST_ERR_INVALID_ARGUMENT, "host memory");
    CHECK_OK(dist_batch_begin(groups, 1));
    CHECK_REFUSED(dist_all_equal(me->group, "x", 1, &equal, NULL, NULL), DIST_ERR_INVALID_ARGUMENT, "batch");
    CHECK_OK(dist_batch_end(NULL));
    CHECK(equal == 7);
}

int main(void)
{
    run_everywhere(run_all_checks);
    run_ranks("inproc", 3, check_order_with_collectives);
    run_ranks("inproc", 1, check_refusals);
    return check_report();
}
