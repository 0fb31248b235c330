/*
 * The gather into one buffer with displacements (dist_all_gather_v_at), and of counts
 * (dist_all_gather_counts).
 */
#include "ranks.h"

#define BUFFER_ELEMENTS 4096
#define EMPTY 0x7fffffff

static int32_t element(int rank, size_t i)
{
    return rank * 100000 + (int32_t)i;
}

/* Rank 1 has no elements; rank 2 has more than a control slot holds. */
static size_t count_for_rank(int rank)
{
    static const size_t counts[MOST_RANKS] = { 3, 0, 900, 17 };
    return counts[rank];
}

static void clear(int32_t *buffer)
{
    size_t i;
    for (i = 0; i < BUFFER_ELEMENTS; i++) {
        buffer[i] = EMPTY;
    }
}

/* Every block is at its displacement, and no other element has changed. */
static void check_blocks(const struct rank *me, const int32_t *recv, const size_t *counts, const size_t *displs)
{
    int32_t expected[BUFFER_ELEMENTS];
    int r;
    clear(expected);
    for (r = 0; r < me->size; r++) {
        size_t i;
        for (i = 0; i < counts[r]; i++) {
            expected[displs[r] + i] = element(r, i);
        }
    }
    CHECK(memcmp(recv, expected, sizeof(expected)) == 0);
}

static void fill(int32_t *block, const struct rank *me)
{
    size_t i;
    for (i = 0; i < count_for_rank(me->rank); i++) {
        block[i] = element(me->rank, i);
    }
}

static void check_gather(const struct rank *me, const size_t *counts, const size_t *displs, int is_packed,
                         int is_in_place)
{
    int32_t own[BUFFER_ELEMENTS], recv[BUFFER_ELEMENTS];
    const int32_t *send = own;
    dist_work_t *work = NULL;
    clear(recv);
    fill(is_in_place ? recv + displs[me->rank] : own, me);
    if (is_in_place) {
        send = recv + displs[me->rank];
    }
    CHECK_OK(dist_all_gather_v_at(me->group, send, recv, counts, is_packed ? NULL : displs, DIST_I32, NULL, NULL));
    check_blocks(me, recv, counts, displs);
    clear(recv);
    fill(is_in_place ? recv + displs[me->rank] : own, me);
    CHECK_OK(dist_all_gather_v_at(me->group, send, recv, counts, is_packed ? NULL : displs, DIST_I32, NULL, &work));
    CHECK_OK(dist_work_wait(work, 0));
    CHECK_OK(dist_work_release(work));
    check_blocks(me, recv, counts, displs);
}

/* One rank passes pointers to its blocks and its peers pass displacements: both are the same
 * operation. */
static void gather_v_matches_the_list_form(const struct rank *me, const size_t *counts, const size_t *displs)
{
    int32_t own[BUFFER_ELEMENTS], recv[BUFFER_ELEMENTS];
    void *blocks[MOST_RANKS];
    int r;
    clear(recv);
    fill(own, me);
    for (r = 0; r < me->size; r++) {
        blocks[r] = recv + displs[r];
    }
    if (me->rank == 0) {
        CHECK_OK(dist_all_gather_v(me->group, own, blocks, counts, DIST_I32, NULL, NULL));
    } else {
        CHECK_OK(dist_all_gather_v_at(me->group, own, recv, counts, displs, DIST_I32, NULL, NULL));
    }
    check_blocks(me, recv, counts, displs);
}

static void run_all_checks(const struct rank *me)
{
    size_t counts[MOST_RANKS] = { 9, 9, 9, 9 };
    size_t packed[MOST_RANKS], spread_displs[MOST_RANKS];
    dist_work_t *work = NULL;
    int r;
    CHECK_OK(dist_all_gather_counts(me->group, count_for_rank(me->rank), counts, NULL, NULL));
    for (r = 0; r < MOST_RANKS; r++) {
        CHECK(counts[r] == (r < me->size ? count_for_rank(r) : 9));
    }
    CHECK_OK(dist_all_gather_counts(me->group, SIZE_MAX - (size_t)me->rank, counts, NULL, &work));
    CHECK_OK(dist_work_wait(work, 0));
    CHECK_OK(dist_work_release(work));
    for (r = 0; r < me->size; r++) {
        CHECK(counts[r] == SIZE_MAX - (size_t)r);
        counts[r] = count_for_rank(r);
    }
    for (r = 0; r < me->size; r++) {
        packed[r] = r == 0 ? 0 : packed[r - 1] + counts[r - 1];
        /* The displacements have the reverse order, gaps, and another offset on each rank. */
        spread_displs[r] = (size_t)(MOST_RANKS - 1 - r) * 1000 + (size_t)me->rank;
    }
    check_gather(me, counts, packed, 1, 0);
    check_gather(me, counts, packed, 1, 1);
    check_gather(me, counts, spread_displs, 0, 0);
    check_gather(me, counts, spread_displs, 0, 1);
    gather_v_matches_the_list_form(me, counts, spread_displs);
}

/* Each call is refused locally, without an effect on other ranks. */
static void check_refusals(const struct rank *me)
{
    int32_t buffer[8] = { 0 };
    size_t counts[1] = { 2 };
    size_t outside[1] = { SIZE_MAX };
    size_t overlapping[1] = { 1 };
    CHECK_REFUSED(dist_all_gather_v_at(me->group, buffer, buffer + 4, counts, outside, DIST_I32, NULL, NULL),
                  DIST_ERR_INVALID_ARGUMENT, "rank 0");
    CHECK_REFUSED(dist_all_gather_v_at(me->group, buffer, NULL, counts, NULL, DIST_I32, NULL, NULL),
                  DIST_ERR_INVALID_ARGUMENT, "recv is NULL");
    CHECK_STATUS(dist_all_gather_v_at(me->group, buffer, buffer, counts, overlapping, DIST_I32, NULL, NULL),
                 DIST_ERR_INVALID_ARGUMENT);
    CHECK_REFUSED(dist_all_gather_counts(me->group, 1, (size_t *)((char *)outside + 1), NULL, NULL),
                  DIST_ERR_INVALID_ARGUMENT, "counts");
    counts[0] = 0;
    CHECK_OK(dist_all_gather_v_at(me->group, NULL, NULL, counts, outside, DIST_I32, NULL, NULL));
    CHECK_OK(dist_all_gather_v_at(me->group, NULL, NULL, counts, NULL, DIST_I32, NULL, NULL));
}

int main(void)
{
    run_everywhere(run_all_checks);
    run_ranks("inproc", 1, check_refusals);
    return check_report();
}
