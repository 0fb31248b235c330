/*
 * Sharded optimizers when a rank is lost: before the end of a step, and before or during a
 * gather. The survivors continue with the weights and states of a training in one process. A
 * rank that joins gets its share.
 */
#define _DEFAULT_SOURCE

#include "reducer_shard.h"

#include <unistd.h>

#define STEPS 9

/* The time in a step at which the last rank is lost. */
enum loss_moment { BEFORE_END, BEFORE_GATHER, IN_GATHER, AFTER_GATHER, N_MOMENTS };

static enum loss_moment loss_moment;
static int in_background, lost_step = 4, delay_us;

/* Creates the group of the survivors. */
static void shrink_group(struct trainer *t, const struct rank *me, dist_group_t **survivors)
{
    CHECK(*survivors == NULL);
    *survivors = make_group(me, "left", me->size - 1);
    REQUIRE_OK(dist_reducer_regroup(t->reducer, *survivors));
    t->group = *survivors;
}

static int is_rank_lost(const struct rank *me, const struct trainer *t, enum loss_moment current)
{
    if (me->rank != me->size - 1 ||
        t->steps != lost_step + (current == AFTER_GATHER || current == BEFORE_GATHER || current == IN_GATHER) ||
        current != loss_moment) {
        return 0;
    }
    usleep((unsigned)delay_us);
    CHECK_OK(dist_group_abort(me->group, "lost"));
    return 1;
}

static void gather_params(struct trainer *t, const struct rank *me, dist_group_t **survivors)
{
    dist_status_t status;
    if (in_background) {
        dist_work_t *work = NULL;
        size_t p;
        status = dist_shard_gather(t->shard, &work);
        for (p = 0; status == DIST_OK && p < PARAMS; p++) {
            status = dist_shard_wait(t->shard, p);
        }
        CHECK_OK(dist_work_release(work));
    } else {
        status = dist_shard_gather(t->shard, NULL);
    }
    if (status != DIST_OK) {
        shrink_group(t, me, survivors);
        REQUIRE_OK(dist_shard_gather(t->shard, NULL));
    }
}

static void survivors_continue_after_a_lost_rank(const struct rank *me)
{
    struct trainer t;
    struct reference ref;
    dist_group_t *survivors = NULL;
    unsigned everyone = (1u << me->size) - 1, survivors_left = everyone >> 1;
    /* The gradients of the lost rank are in the step if its end was reached. */
    int last_with_all = loss_moment == BEFORE_END ? lost_step - 1 : lost_step;
    open_trainer(&t, me->group, ALL_REDUCED, 2, DIST_REDUCER_RETRYABLE);
    reference_init(&ref);
    while (t.steps < STEPS) {
        run_backward(&t);
        if (is_rank_lost(me, &t, BEFORE_END)) {
            break;
        }
        if (dist_reducer_end(t.reducer, DIST_VOTE_COMMIT, NULL, NULL) != DIST_OK) {
            shrink_group(&t, me, &survivors);
            REQUIRE_OK(dist_reducer_end(t.reducer, DIST_VOTE_COMMIT, NULL, NULL));
        }
        update_shard(&t);
        if (is_rank_lost(me, &t, BEFORE_GATHER)) {
            break;
        }
        if (loss_moment == IN_GATHER && me->rank == me->size - 1 && t.steps == lost_step + 1) {
            dist_work_t *work = NULL;
            CHECK_OK(dist_shard_gather(t.shard, &work));
            is_rank_lost(me, &t, IN_GATHER);
            CHECK_OK(dist_work_release(work));
            break;
        }
        gather_params(&t, me, &survivors);
        if (is_rank_lost(me, &t, AFTER_GATHER)) {
            break;
        }
        reference_step(&ref, ref.steps <= last_with_all ? everyone : survivors_left, 0);
        check_weights(&t, &ref);
    }
    CHECK((survivors != NULL) == (me->rank != me->size - 1));
    close_trainer(&t);
    if (survivors != NULL) {
        CHECK_OK(dist_group_release(survivors));
    }
}

/* With one copy the states of the lost rank are lost, and all ranks get the error. */
static void lost_states_are_an_error(const struct rank *me)
{
    struct trainer t;
    dist_group_t *survivors = NULL;
    open_trainer(&t, me->group, ALL_REDUCED, 1, DIST_REDUCER_RETRYABLE);
    run_backward(&t);
    meet_before_abort(me->group);
    if (me->rank == me->size - 1) {
        CHECK_OK(dist_group_abort(me->group, "lost"));
    } else {
        CHECK(dist_reducer_end(t.reducer, DIST_VOTE_COMMIT, NULL, NULL) != DIST_OK);
        shrink_group(&t, me, &survivors);
        REQUIRE_OK(dist_reducer_end(t.reducer, DIST_VOTE_COMMIT, NULL, NULL));
        update_shard(&t);
        CHECK_REFUSED(dist_shard_gather(t.shard, NULL), DIST_ERR_NOT_FOUND, "rank 2 of the former group");
    }
    close_trainer(&t);
    if (survivors != NULL) {
        CHECK_OK(dist_group_release(survivors));
    }
}

/* The last rank joins after some steps. */
static void check_joining_rank(const struct rank *me, enum mode mode)
{
    struct trainer t;
    struct reference ref;
    dist_group_t *first = NULL;
    int s, before = me->size - 1, is_new = me->rank == before;
    reference_init(&ref);
    if (is_new) {
        memset(&t, 0, sizeof(t));
        t.group = me->group;
        t.mode = mode;
        t.copies = 1;
        t.origin = me->rank;
        make_reducer(&t);
        make_shard(&t);
        t.steps = STEPS;
    } else {
        first = make_group(me, "first", before);
        open_trainer(&t, first, mode, 1, 0);
    }
    for (s = 0; s < 2 * STEPS; s++) {
        if (s == STEPS && !is_new) {
            size_t n = 0;
            REQUIRE_OK(dist_reducer_regroup(t.reducer, me->group));
            t.group = me->group;
            if (mode != ALL_REDUCED) {
                CHECK_REFUSED(dist_shard_ranges(t.shard, NULL, 0, &n), DIST_ERR_INVALID_ARGUMENT, "dist_shard_gather");
            }
            REQUIRE_OK(dist_shard_gather(t.shard, NULL));
        }
        if (s >= STEPS || !is_new) {
            run_backward(&t);
            REQUIRE_OK(dist_reducer_end(t.reducer, DIST_VOTE_COMMIT, NULL, NULL));
            update_shard(&t);
            REQUIRE_OK(dist_shard_gather(t.shard, NULL));
        }
        reference_step(&ref, (1u << (s < STEPS ? before : me->size)) - 1, 0);
        if (s >= STEPS || !is_new) {
            check_weights(&t, &ref);
        }
    }
    close_trainer(&t);
    if (first != NULL) {
        CHECK_OK(dist_group_release(first));
    }
}

static void rank_joins_with_all_reduced_gradients(const struct rank *me)
{
    check_joining_rank(me, ALL_REDUCED);
}

static void rank_joins_with_owned_gradients(const struct rank *me)
{
    check_joining_rank(me, REDUCER_MEMORY);
}

int main(void)
{
    static const char *const transports[] = { "inproc", "shm", "tcp" };
    static const int delays[] = { 0, 200, 3000 };
    int t, d;
    for (t = 0; t < 3; t++) {
        for (in_background = 0; in_background <= 1; in_background++) {
            for (d = 0; d < 3; d++) {
                delay_us = delays[d];
                for (loss_moment = BEFORE_END; loss_moment < N_MOMENTS; loss_moment++) {
                    run_ranks(transports[t], 3 + (d == 1), survivors_continue_after_a_lost_rank);
                }
            }
        }
        run_ranks(transports[t], 3, lost_states_are_an_error);
        run_ranks(transports[t], 3, rank_joins_with_all_reduced_gradients);
        run_ranks(transports[t], 4, rank_joins_with_owned_gradients);
    }
    return check_report();
}
