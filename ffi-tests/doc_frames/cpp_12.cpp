/* ranks: 2
 * standard: c++20
 * prints: done
 * prints: done
 */
#include "frame.hpp"

void run(dist::group_ref world) {
  float x = 1;
#include "block.inc"
  check(x == 4, "the sum");
}
