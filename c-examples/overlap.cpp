// Communication during computation, as in the backward pass of a trainer: each layer's gradients
// are summed over all ranks while the program computes the gradients of the next layer.
//
//     distrun --nproc-per-node 4 ./overlap_cpp
#include <dist.hpp>

#include <algorithm>
#include <iostream>
#include <string>
#include <vector>

using gradients = std::vector<float>;

constexpr int layers = 8;
constexpr std::size_t count = 50'000;

// A substitute for a backward pass. The values are small integers, so that every order of addition
// gives the same sum.
gradients backward(int layer, int rank) {
  gradients g(count);
  for (std::size_t i = 0; i < count; ++i) g[i] = static_cast<float>((rank + 1) * (static_cast<int>(i % 50) + layer));
  return g;
}

int main() try {
  const dist::runtime runtime;
  const dist::group_ref world = runtime.world();
  const int n = world.size();

  // The buffer moves into the work, and take() returns it. If an exception leaves the scope, the
  // works wait.
  std::vector<dist::owning_work<gradients>> sums;
  for (int layer = layers - 1; layer >= 0; --layer) {
    const std::string label = "layer " + std::to_string(layer);
    sums.push_back(world.all_reduce_async(backward(layer, world.rank()), dist::sum,
                                          dist::options{}.with_label(label.c_str())));
  }

  bool is_correct = true;
  for (int layer = layers - 1; layer >= 0; --layer) {
    auto &sum = sums[static_cast<std::size_t>(layers - 1 - layer)];
    const gradients total = sum.take();
    is_correct &= total[49] == static_cast<float>(n * (n + 1) / 2 * (49 + layer));
    const auto us = std::chrono::duration_cast<std::chrono::microseconds>(sum.elapsed()).count();
    if (world.rank() == 0) std::cout << "layer " << layer << ": " << us << " us\n";
  }
  std::cout << "rank " << world.rank() << " of " << n << ": " << (is_correct ? "right" : "wrong") << '\n';
  return is_correct ? 0 : 1;
} catch (const dist::error &error) {
  std::cerr << error.what() << '\n';
  return 1;
}
