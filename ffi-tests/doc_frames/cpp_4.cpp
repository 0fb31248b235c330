/* ranks: 2
 * prints: done
 * prints: done
 */
#include "frame.hpp"

void run(dist::group_ref world) {
  std::vector<float> a(1, 1.0F), b(2, 2.0F);
#include "block.inc"
  check(a[0] == 2 && b[1] == 4, "the sums");
}
