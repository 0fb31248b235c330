/* ranks: 2
 * prints: done
 * prints: done
 */
#include "frame.hpp"

static float share;

static void backward_of_weights(dist::buffer<float> gradient) { gradient.data[0] = share; }
static void backward_of_biases(dist::buffer<float> gradient) { gradient.data[0] = 2 * share; }
static void update(std::vector<float> &values, dist::buffer<float> gradient) {
  values[0] -= gradient.data[0];
}

void run(dist::group_ref world) {
  share = static_cast<float>(world.rank()) + 1;
  std::vector<float> weights(1, share), biases(1, share);
  const int steps = 2;
#include "block.inc"
  // Both begin with 1, the value of rank 0; the averages are 1.5 and 3.
  check(weights[0] == -2 && biases[0] == -5, "the parameters");
}
