/* ranks: 2
 * prints: done
 * prints: done
 */
#include "frame.hpp"

static void train(std::vector<float> &weights, std::vector<float> &biases) {
  weights[0] += 1;
  biases[0] -= 1;
}

void run(dist::group_ref world) {
  std::vector<float> weights(1, static_cast<float>(world.rank())), biases(1, 0.0F);
  const int steps = 500;
#include "block.inc"
  check(weights[0] > 0 && weights[0] == world.all_reduce_value(weights[0], dist::max), "weights");
}
