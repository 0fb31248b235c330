/* ranks: 2
 * prints: done
 * prints: done
 */
#include "frame.hpp"

void run(dist::group_ref world) {
  std::vector<float> weights(2, 1.0F);
  dist::reducer_options options;
#include "block.inc"
  dist::reducer reducer(world, {{"weights", weights}}, options);
  auto step = reducer.step();
  reducer.grad<float>(0).data[0] = static_cast<float>(world.rank());
  reducer.grad<float>(0).data[1] = 3;
  step.ready(0);
  check(step.commit() == dist::vote::commit, "the step");
  check(reducer.result<float>(0).data[0] == 0.5F && reducer.result<float>(0).data[1] == 3, "the average");
}
