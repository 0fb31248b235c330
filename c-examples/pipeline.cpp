// Pipeline parallelism: each rank holds one stage of a model. Micro-batches pass through the ranks,
// so that all stages work at the same time on different micro-batches.
//
//     distrun --nproc-per-node 4 ./pipeline
#include <dist.hpp>

#include <iostream>
#include <optional>
#include <utility>
#include <vector>

using activations = std::vector<float>;

constexpr int micro_batches = 16;
constexpr std::size_t width = 4096;

// One stage: adds its number to each value.
activations forward(activations batch, int stage) {
  for (float &value : batch) value += static_cast<float>(stage);
  return batch;
}

int main() try {
  const dist::runtime runtime;
  const dist::group_ref world = runtime.world();
  const int stage = world.rank(), last = world.size() - 1;

  // Each stage sends a result while it computes the next one, and receives the next input early.
  std::optional<dist::owning_work<activations>> input, output;
  const auto receive = [&] { return world.recv_async(activations(width), stage - 1); };
  if (stage > 0) input = receive();

  bool is_correct = true;
  for (int i = 0; i < micro_batches; ++i) {
    activations batch(width, static_cast<float>(i));
    if (stage > 0) {
      batch = input->take();
      if (i + 1 < micro_batches) input = receive();
    }
    batch = forward(std::move(batch), stage);
    if (stage < last) {
      output = world.send_async(std::move(batch), stage + 1);  // waits for the send before it
    } else {
      is_correct &= batch.back() == static_cast<float>(i + last * (last + 1) / 2);
    }
  }
  if (output) output->wait();
  if (stage == last) std::cout << micro_batches << " micro-batches through " << last
      + 1 << " stages: " << (is_correct ? "right" : "wrong") << '\n';
  return is_correct ? 0 : 1;
} catch (const dist::error &error) {
  std::cerr << error.what() << '\n';
  return 1;
}
