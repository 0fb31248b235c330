/* ranks: 3
 * options: --on-failure continue --min-ranks 2
 * prints: done
 * prints: done
 */
#include "frame.h"

static dist_status_t step(dist_group_t *group)
{
    float one = 1;
    if (dist_get_rank(group) == 2) {
        _Exit(3);
    }
    return dist_all_reduce(group, &one, &one, 1, DIST_F32, DIST_SUM, NULL, NULL);
}

static dist_status_t synchronise(dist_group_t *group)
{
    check(dist_get_world_size(group) == 2, "the size after the failure");
    return dist_barrier(group, NULL, NULL);
}

static int give_up(void)
{
    fprintf(stderr, "dist_group_shrink: %s\n", dist_last_error());
    return 1;
}

static int survive(dist_group_t *group)
{
#include "block.inc"
    check(status == DIST_OK && group != dist_world(), "the survivors");
    return 0;
}

int main(void)
{
    check(dist_init(NULL) == DIST_OK, "dist_init");
    check(survive(dist_world()) == 0, "the end");
    puts("done");
    return 0;
}
