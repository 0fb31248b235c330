/* ranks: 2
 * prints: done
 * prints: 3 elements from rank 1
 */
#include "frame.h"

int main(void)
{
    check(dist_init(NULL) == DIST_OK, "dist_init");
    if (dist_get_rank(dist_world()) == 0) {
        float buf[8] = { 0 };
        size_t room = 8;
#include "block.inc"
        check(buf[0] == 1 && buf[2] == 3 && status.tag == 5, "the message");
    } else {
        float three[3] = { 1, 2, 3 };
        check(dist_send(dist_world(), three, 3, DIST_F32, 0, 5, NULL, NULL) == DIST_OK, "dist_send");
        puts("done");
    }
    check(dist_finalize() == DIST_OK, "dist_finalize");
    return 0;
}
