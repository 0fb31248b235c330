/* ranks: 4
 * prints: done
 * prints: done
 * prints: done
 * prints: done
 */
#include "frame.h"

int main(void)
{
    check(dist_init(NULL) == DIST_OK, "dist_init");
    int rank = dist_get_rank(dist_world());
#include "block.inc"
    check((pair != NULL) == (rank == 0 || rank == 3), "the members of the pair");
    check(pair == NULL || dist_get_rank(pair) == (rank == 3 ? 0 : 1), "the ranks of the pair");
    check(dist_get_world_size(half) == 2 && dist_get_rank(half) == rank / 2, "the half");
    check(pair == NULL || dist_group_release(pair) == DIST_OK, "the release of the pair");
    check(dist_group_release(half) == DIST_OK, "the release of the half");
    check(dist_finalize() == DIST_OK, "dist_finalize");
    puts("done");
    return 0;
}
