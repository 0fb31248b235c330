/*
 * Sparse gradients: each rank passes some rows of an embedding, and all ranks get the sums of all
 * rows. Tested are each division, rows that come several times, ranks without rows, clipping, and
 * a step that is repeated.
 */
#include "ranks.h"

#include <math.h>

#define ROWS 100
#define WIDTH 3

static float table[MOST_RANKS][ROWS * WIDTH];
static float bias[MOST_RANKS][8];
static double scores[MOST_RANKS][ROWS];

static dist_reducer_t *make_reducer(const struct rank *me, uint64_t flags, int32_t divide)
{
    static const int64_t shapes[2][2] = { { ROWS, WIDTH }, { ROWS, 1 } };
    dist_param_t params[3] = { DIST_PARAM_INIT, DIST_PARAM_INIT, DIST_PARAM_INIT };
    dist_reducer_options_t options = DIST_REDUCER_OPTIONS_INIT;
    dist_reducer_t *reducer = NULL;
    params[0].name = "table";
    params[0].data = table[me->rank];
    params[0].shape = shapes[0];
    params[0].n_shape = 2;
    params[0].count = ROWS * WIDTH;
    params[0].dtype = DIST_F32;
    params[0].flags = DIST_PARAM_SPARSE_ROWS;
    params[1].name = "bias";
    params[1].data = bias[me->rank];
    params[1].count = 8;
    params[1].dtype = DIST_F32;
    params[2].name = "scores";
    params[2].data = scores[me->rank];
    params[2].shape = shapes[1];
    params[2].n_shape = 2;
    params[2].count = ROWS;
    params[2].dtype = DIST_F64;
    params[2].flags = DIST_PARAM_SPARSE_ROWS;
    options.flags = flags;
    options.divide = divide;
    REQUIRE_OK(dist_reducer_create(me->group, params, 3, &options, &reducer));
    return reducer;
}

/* The rows of a rank: its own row, a common row twice, and the last row. */
struct rows {
    int64_t indices[4];
    float values[4 * WIDTH];
    double scores[4];
};

static void fill_rows(struct rows *rows, int rank)
{
    int i;
    rows->indices[0] = 50;
    rows->indices[1] = 10 + rank;
    rows->indices[2] = ROWS - 1;
    rows->indices[3] = 50;
    for (i = 0; i < 4 * WIDTH; i++) {
        rows->values[i] = (float)(rank + 1 + i);
    }
    for (i = 0; i < 4; i++) {
        rows->scores[i] = rank + 2 * i;
    }
}

static double rank_weight(int rank)
{
    return 1 + rank;
}

/* Returns the expected element of a row for the ranks from `first` on, after the division. */
static double expected_value(int first, int size, int32_t divide, int64_t row, int column)
{
    double sum = 0, weights = 0;
    int rank, i;
    for (rank = 0; rank < size; rank++) {
        struct rows rows;
        double factor = divide == DIST_DIVIDE_WEIGHTED ? rank_weight(rank) : 1;
        fill_rows(&rows, rank);
        weights += rank_weight(rank);
        for (i = 0; i < 4 && rank >= first; i++) {
            sum += rows.indices[i] == row ? factor * rows.values[i * WIDTH + column] : 0;
        }
    }
    return divide == DIST_DIVIDE_NONE ? sum : divide == DIST_DIVIDE_WEIGHTED ? sum / weights : sum / size;
}

/* Checks the reduced rows of the ranks from `first` on. */
static void check_rows(const struct rank *me, dist_reducer_t *reducer, int first, int32_t divide)
{
    const int64_t *rows = NULL;
    void *values = NULL;
    size_t n = 99, i, column;
    REQUIRE_OK(dist_reducer_rows(reducer, 0, &rows, &values, &n));
    CHECK(n == (first == me->size ? 0 : (size_t)(me->size - first) + 2));
    for (i = 0; i < n; i++) {
        CHECK(i == 0 || rows[i] > rows[i - 1]);
        for (column = 0; column < WIDTH; column++) {
            double expected = expected_value(first, me->size, divide, rows[i], (int)column);
            CHECK(fabs(((float *)values)[i * WIDTH + column] - expected) < 1e-4);
        }
    }
    REQUIRE_OK(dist_reducer_rows(reducer, 2, &rows, &values, &n));
    if (n > 0 && divide == DIST_DIVIDE_NONE) {
        /* Row 50 has the entries 0 and 3 of each rank. */
        double expected = 0;
        int rank;
        for (rank = first; rank < me->size; rank++) {
            expected += 2 * rank + 6;
        }
        CHECK(rows[n - 2] == 50 && ((double *)values)[n - 2] == expected);
    }
}

static void mark_rows(const struct rank *me, dist_reducer_t *reducer, struct rows *rows, int first)
{
    fill_rows(rows, me->rank);
    if (me->rank < first) {
        CHECK_OK(dist_reducer_unused(reducer, 0));
        CHECK_OK(dist_reducer_ready_rows(reducer, 2, NULL, NULL, 0));
    } else {
        CHECK_OK(dist_reducer_ready_rows(reducer, 0, rows->indices, rows->values, 4));
        CHECK_OK(dist_reducer_ready_rows(reducer, 2, rows->indices, rows->scores, 4));
    }
    CHECK_OK(dist_reducer_ready(reducer, 1));
}

static void every_division_is_right(const struct rank *me)
{
    int32_t divide;
    int first;
    for (divide = DIST_DIVIDE_WORLD; divide <= DIST_DIVIDE_WEIGHTED; divide++) {
        dist_reducer_t *reducer = make_reducer(me, divide == DIST_DIVIDE_NONE ? DIST_REDUCER_RETRYABLE : 0, divide);
        for (first = 0; first <= me->size; first++) {
            struct rows rows;
            dist_blob_t *differences = NULL;
            REQUIRE_OK(dist_reducer_begin(reducer, rank_weight(me->rank), 0));
            mark_rows(me, reducer, &rows, first);
            REQUIRE_OK(dist_reducer_end(reducer, DIST_VOTE_COMMIT, NULL, NULL));
            check_rows(me, reducer, first, divide);
            REQUIRE_OK(dist_reducer_check(reducer, DIST_REDUCER_GRADS, &differences));
            CHECK(dist_blob_count(differences) == 0);
            CHECK_OK(dist_blob_release(differences));
        }
        CHECK_OK(dist_reducer_release(reducer));
    }
}

/* The norm counts the rows, and they are scaled. */
static void clip_scales_rows(const struct rank *me)
{
    dist_reducer_t *reducer = make_reducer(me, 0, DIST_DIVIDE_WORLD);
    const int64_t row = 3;
    const float values[WIDTH] = { 3, 0, 4 };
    const int64_t *rows = NULL;
    void *reduced = NULL;
    size_t n = 0;
    double norm = 0;
    REQUIRE_OK(dist_reducer_begin(reducer, 0, 0));
    CHECK_OK(dist_reducer_ready_rows(reducer, 0, &row, values, 1));
    CHECK_OK(dist_reducer_unused(reducer, 1));
    CHECK_OK(dist_reducer_unused(reducer, 2));
    REQUIRE_OK(dist_reducer_end(reducer, DIST_VOTE_COMMIT, NULL, NULL));
    CHECK_OK(dist_reducer_clip(reducer, 1, 2, &norm));
    CHECK(fabs(norm - 5) < 1e-6);
    REQUIRE_OK(dist_reducer_rows(reducer, 0, &rows, &reduced, &n));
    CHECK(n == 1 && rows[0] == 3 && fabs(((float *)reduced)[2] - 0.8) < 1e-5);
    CHECK_OK(dist_reducer_release(reducer));
}

/* The group is aborted before the end; the step is repeated with the same rows. */
static void aborted_step_is_repeatable(const struct rank *me)
{
    dist_reducer_t *reducer = make_reducer(me, DIST_REDUCER_RETRYABLE, DIST_DIVIDE_WORLD);
    dist_group_t *left = NULL;
    struct rows rows;
    const int64_t wrong_row = 0;
    const float wrong_values[WIDTH] = { 1e6f, 1e6f, 1e6f };
    meet_before_abort(me->group);
    REQUIRE_OK(dist_reducer_begin(reducer, 0, 0));
    mark_rows(me, reducer, &rows, 0);
    /* Rows of a mark that is refused are not sent. */
    CHECK_REFUSED(dist_reducer_ready_rows(reducer, 0, &wrong_row, wrong_values, 1), DIST_ERR_INVALID_ARGUMENT, "marked twice");
    if (me->rank == 0) {
        CHECK_OK(dist_group_abort(me->group, "a test"));
    }
    CHECK_STATUS(dist_reducer_end(reducer, DIST_VOTE_COMMIT, NULL, NULL), DIST_ERR_ABORTED);
    REQUIRE_OK(dist_group_shrink(me->group, NULL, &left));
    REQUIRE_OK(dist_reducer_regroup(reducer, left));
    REQUIRE_OK(dist_reducer_end(reducer, DIST_VOTE_COMMIT, NULL, NULL));
    check_rows(me, reducer, 0, DIST_DIVIDE_WORLD);
    CHECK_OK(dist_reducer_release(reducer));
    CHECK_OK(dist_group_release(left));
}

static void check_refusals(const struct rank *me)
{
    static const int64_t row = ROWS, valid_row = 1;
    const int64_t *rows = &row;
    float values[WIDTH] = { 0, 0, 0 };
    void *buffer = values;
    size_t n = 99;
    dist_reducer_t *reducer = make_reducer(me, 0, DIST_DIVIDE_WORLD), *other = NULL;
    dist_param_t param = DIST_PARAM_INIT;
    CHECK_REFUSED(dist_reducer_grad(reducer, 0, &buffer, NULL), DIST_ERR_INVALID_ARGUMENT, "dist_reducer_ready_rows");
    CHECK_REFUSED(dist_reducer_rows(reducer, 1, &rows, &buffer, &n), DIST_ERR_INVALID_ARGUMENT, "dense");
    CHECK(rows == NULL && buffer == NULL && n == 99);
    REQUIRE_OK(dist_reducer_rows(reducer, 0, &rows, &buffer, &n));
    CHECK(rows == NULL && buffer == NULL && n == 0);
    REQUIRE_OK(dist_reducer_begin(reducer, 0, 0));
    CHECK_REFUSED(dist_reducer_ready(reducer, 0), DIST_ERR_INVALID_ARGUMENT, "dist_reducer_ready_rows");
    CHECK_REFUSED(dist_reducer_ready_rows(reducer, 1, &valid_row, values, 1), DIST_ERR_INVALID_ARGUMENT, "dense");
    CHECK_REFUSED(dist_reducer_ready_rows(reducer, 0, &row, values, 1), DIST_ERR_INVALID_ARGUMENT, "rows[0] is 100");
    CHECK_REFUSED(dist_reducer_ready_rows(reducer, 0, NULL, values, 1), DIST_ERR_INVALID_ARGUMENT, "rows");
    CHECK_REFUSED(dist_reducer_ready_rows(reducer, 0, &valid_row, NULL, 1), DIST_ERR_INVALID_ARGUMENT, "values");
    CHECK_OK(dist_reducer_ready_rows(reducer, 0, &valid_row, values, 1));
    CHECK_REFUSED(dist_reducer_ready_rows(reducer, 0, &valid_row, values, 1), DIST_ERR_INVALID_ARGUMENT,
                  "marked twice");
    CHECK_OK(dist_reducer_unused(reducer, 1));
    CHECK_OK(dist_reducer_unused(reducer, 2));
    CHECK_OK(dist_reducer_end(reducer, DIST_VOTE_COMMIT, NULL, NULL));
    CHECK_OK(dist_reducer_release(reducer));
    param.name = "no shape";
    param.data = table[0];
    param.count = 6;
    param.dtype = DIST_F32;
    param.flags = DIST_PARAM_SPARSE_ROWS;
    CHECK_REFUSED(dist_reducer_create(me->group, &param, 1, NULL, &other), DIST_ERR_INVALID_ARGUMENT, "number of rows");
}

int main(void)
{
    run_everywhere(every_division_is_right);
    run_everywhere(clip_scales_rows);
    run_everywhere(aborted_step_is_repeatable);
    run_ranks("shm", 1, check_refusals);
    return check_report();
}
