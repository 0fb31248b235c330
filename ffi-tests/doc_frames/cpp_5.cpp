/* ranks: 2
 * prints: done
 * prints: done
 */
#include "frame.hpp"

struct candidate {
  float score;
  int index;
};

void run(dist::group_ref world) {
  float x = static_cast<float>(world.rank()) + 1;
  candidate best{x, world.rank()};
#include "block.inc"
  check(x == 2 && best.index == 1 && best.score == 2, "the results");
}
