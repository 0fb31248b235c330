/* ranks: 2
 * prints: done
 * prints: done
 */
#include "frame.h"

static int computed;

static void compute_something_else(void)
{
    computed = 1;
}

int main(void)
{
    check(dist_init(NULL) == DIST_OK, "dist_init");
    float gradient[3] = { 1, 2, 3 };
    size_t n = 3;
#include "block.inc"
    check(computed && gradient[0] == 2 && gradient[2] == 6, "the sums");
    check(dist_finalize() == DIST_OK, "dist_finalize");
    puts("done");
    return 0;
}
