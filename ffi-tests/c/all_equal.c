/*
 * The comparison of bytes of all ranks (dist_all_equal): all ranks get the same answer for any
 * difference.
 */
#include "ranks.h"

#define LONG 100000

static void expect(const struct rank *me, const void *bytes, size_t len, int wanted)
{
    int32_t equal = 7, differing = 7;
    CHECK_OK(dist_all_equal(me->group, bytes, len, &equal, &differing, NULL));
    CHECK(equal == (wanted < 0));
    CHECK(differing == wanted);
}

static void body(const struct rank *me)
{
    static const char long_text[LONG];
    char own[LONG];
    int r;
    memset(own, 0, sizeof(own));
    expect(me, NULL, 0, -1);
    expect(me, "same", 4, -1);
    expect(me, own, LONG, -1);
    for (r = 0; r < me->size; r++) {
        /* One bit of the last byte differs on rank r. If rank 0 differs, rank 1 is reported. */
        int wanted = me->size == 1 ? -1 : r == 0 ? 1 : r;
        own[LONG - 1] = (char)(me->rank == r);
        expect(me, own, LONG, wanted);
        /* The length differs on one rank. */
        expect(me, long_text, LONG - (size_t)(me->rank == r), wanted);
        expect(me, "", (size_t)(me->rank == r), wanted);
    }
    /* Two ranks differ, and the lower one is reported. */
    own[0] = (char)(me->rank >= 2 ? me->rank : 0);
    own[LONG - 1] = 0;
    expect(me, own, LONG, me->size > 2 ? 2 : -1);
    /* Both outputs are optional. */
    CHECK_OK(dist_all_equal(me->group, "x", 1, NULL, NULL, NULL));
}

/* The comparison has a position in the order of collectives like any other call. */
static void takes_its_turn(const struct rank *me)
{
    float value = (float)me->rank, sum = 0;
    dist_work_t *work = NULL;
    CHECK_OK(dist_all_reduce(me->group, &value, &sum, 1, DIST_F32, DIST_SUM, NULL, &work));
    expect(me, "x", 1, -1);
    CHECK_OK(dist_work_wait(work, 0));
    CHECK_OK(dist_work_release(work));
    CHECK(sum == 3);
}

static void refusals(const struct rank *me)
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
    run_everywhere(body);
    run_ranks("inproc", 3, takes_its_turn);
    run_ranks("inproc", 1, refusals);
    return check_report();
}
