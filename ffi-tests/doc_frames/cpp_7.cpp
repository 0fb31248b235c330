/* ranks: 2
 * prints: done
 * prints: done
 */
#include "frame.hpp"

void run(dist::group_ref world) {
  const std::size_t rows = 8, columns = 4;
  std::vector<float> weights(rows * columns, 1.0F);
#include "block.inc"
  auto step = reducer.step();
  for (float &gradient : reducer.grad<float>(0)) {
    gradient = 1;
  }
  step.ready(0);
  check(step.commit() == dist::vote::commit, "the step");
  check(reducer.result<float>(0).data[0] == 1, "the average");
}
