/* ranks: 2
 * prints: done
 * prints: done
 */
#include "frame.h"

int main(void)
{
    check(dist_init(NULL) == DIST_OK, "dist_init");
    if (dist_get_rank(dist_world()) == 0) {
#include "block.inc"
        check(status.count == 5 && buf[0] == 1 && buf[4] == 5, "the message");
        free(buf);
    } else {
        float five[5] = { 1, 2, 3, 4, 5 };
        check(dist_send(dist_world(), five, 5, DIST_F32, 0, 7, NULL, NULL) == DIST_OK, "dist_send");
    }
    check(dist_finalize() == DIST_OK, "dist_finalize");
    puts("done");
    return 0;
}
