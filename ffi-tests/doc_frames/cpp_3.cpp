/* ranks: 2
 * prints: done
 * prints: done
 */
#include "frame.hpp"

namespace my {
struct half {
  unsigned short bits;
};
struct tensor {
  std::vector<float> values;
  template <typename T> T *data_ptr() { return values.data(); }
  std::size_t numel() const { return values.size(); }
};
} // namespace my

#include "block.inc"

void run(dist::group_ref world) {
  my::tensor tensor{{1, 2}};
  world.all_reduce(tensor, dist::sum);
  check(tensor.values[1] == 4, "the sum of tensors");
  std::vector<my::half> halves(1, my::half{0x3c00}); // 1.0
  world.all_reduce(halves, dist::sum);
  check(halves[0].bits == 0x4000, "the sum of halves");
}
