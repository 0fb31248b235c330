/*
 * NULL is an invalid group: DIST_ERR_NOT_INITIALIZED before dist_init and after dist_finalize,
 * DIST_ERR_INVALID_HANDLE in between, also for a rank that is no member of a new group and got
 * NULL.
 */
#include "check.h"

static int32_t a[2] = { 1, 2 };
static int32_t b[2] = { 7, 7 };
static dist_work_t *work;
static dist_blob_t *blob;
static dist_group_t *other;
static void *memory;

static void check_every_call(dist_group_t *group, dist_status_t expected, const char *word)
{
    dist_group_t *groups[1];
    char text[8];
    groups[0] = group;
    CHECK_REFUSED(dist_all_reduce(group, a, b, 1, DIST_I32, DIST_SUM, NULL, NULL), expected, word);
    CHECK_REFUSED(dist_all_reduce(group, a, b, 1, DIST_I32, DIST_SUM, NULL, &work), expected, word);
    CHECK_REFUSED(dist_reduce(group, a, b, 1, DIST_I32, DIST_SUM, 0, NULL, NULL), expected, word);
    CHECK_REFUSED(dist_broadcast(group, b, 1, DIST_I32, 0, NULL, NULL), expected, word);
    CHECK_REFUSED(dist_all_gather(group, a, b, 1, DIST_I32, NULL, NULL), expected, word);
    CHECK_REFUSED(dist_barrier(group, NULL, NULL), expected, word);
    CHECK_REFUSED(dist_send(group, a, 1, DIST_I32, 0, 0, NULL, NULL), expected, word);
    CHECK_REFUSED(dist_recv(group, b, 1, DIST_I32, 0, 0, NULL, NULL, NULL), expected, word);
    CHECK_REFUSED(dist_all_gather_bytes(group, a, 1, &blob, NULL, NULL), expected, word);
    CHECK_REFUSED(dist_monitored_barrier(group, 0, 0, NULL, NULL), expected, word);
    CHECK_REFUSED(dist_batch_begin(groups, 1), expected, word);
    CHECK_REFUSED(dist_group_new(group, NULL, 0, NULL, &other), expected, word);
    CHECK_REFUSED(dist_group_split(group, 0, 0, NULL, &other), expected, word);
    CHECK_REFUSED(dist_group_shrink(group, NULL, &other), expected, word);
    CHECK_REFUSED(dist_group_abort(group, "no"), expected, word);
    CHECK_REFUSED(dist_group_set_timeout(group, 5), expected, word);
    CHECK_REFUSED(dist_group_describe(group, &blob), expected, word);
    CHECK_REFUSED(dist_mem_alloc(group, 8, DIST_DEVICE_HOST, &memory), expected, word);
    CHECK_REFUSED(dist_backend_supports(group, DIST_KIND_BARRIER, -1, -1, DIST_DEVICE_HOST), expected, word);
    CHECK(dist_get_rank(group) == -1 && dist_get_world_size(group) == -1);
    CHECK(dist_group_local_rank(group) == -1 && dist_group_local_size(group) == -1);
    CHECK(dist_group_host_index(group) == -1 && dist_group_host_count(group) == -1);
    CHECK(dist_group_rank_from_global(group, 0) == -1 && dist_group_rank_to_global(group, 0) == -1);
    CHECK(dist_group_ranks(group, NULL, 0) == 0);
    CHECK(dist_group_name(group, text, sizeof(text)) == 0);
    CHECK(dist_group_backend(group, text, sizeof(text)) == 0);
    CHECK(dist_group_error(group, text, sizeof(text)) == 0);
    CHECK_OK(dist_group_release(group));
    CHECK(work == NULL && blob == NULL && other == NULL && memory == NULL && b[0] == 7);
}

int main(void)
{
    dist_group_t *not_a_group = (dist_group_t *)a;
    check_every_call(NULL, DIST_ERR_NOT_INITIALIZED, "dist_init");
    start_world();
    check_every_call(NULL, DIST_ERR_INVALID_HANDLE, "dist_world()");
    /* Without a color the rank gets no group. */
    CHECK_OK(dist_group_split(dist_world(), DIST_NO_COLOR, 0, NULL, &not_a_group));
    CHECK(not_a_group == NULL);
    check_every_call(not_a_group, DIST_ERR_INVALID_HANDLE, "dist_world()");
    /* The world group is not affected. */
    CHECK_OK(dist_all_reduce(dist_world(), a, b, 2, DIST_I32, DIST_SUM, NULL, NULL));
    CHECK(b[0] == 1 && b[1] == 2);
    b[0] = 7;
    CHECK_OK(dist_finalize());
    check_every_call(NULL, DIST_ERR_NOT_INITIALIZED, "dist_init");
    return check_report();
}
