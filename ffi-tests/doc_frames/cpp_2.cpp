/* ranks: 2
 * prints: done
 * prints: done
 */
#include "frame.hpp"

void run(dist::group_ref world) {
  std::vector<float> x(2, 1.0F);
#include "block.inc"
  check(x[1] == 2, "the sum");
}
