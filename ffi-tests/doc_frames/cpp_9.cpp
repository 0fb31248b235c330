/* ranks: 2
 * prints: done
 * prints: done
 */
#include "frame.hpp"

static void adam(float &value, float &m, float &v, float gradient) {
  m += gradient;
  v += gradient * gradient;
  value -= m;
}

void run(dist::group_ref world) {
  std::vector<float> weights(6, 1.0F);
  dist::reducer reducer(world, {{"weights", weights}});
  auto step = reducer.step();
  const auto gradients_of_rank = reducer.grad<float>(0);
  for (std::size_t i = 0; i < 6; ++i) {
    gradients_of_rank.data[i] = 2;
  }
  step.ready(0);
  check(step.commit() == dist::vote::commit, "the step");
#include "block.inc"
  for (const float weight : weights) {
    check(weight == -1, "the weights of all ranks");
  }
}
