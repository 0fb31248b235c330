// The state of a training in a file.
#ifndef TRAIN_DDP_CHECKPOINT_HPP
#define TRAIN_DDP_CHECKPOINT_HPP

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

struct checkpoint {
  // Where the training goes on: the epoch, the position of the sampler in it, and the number of
  // updates before.
  std::uint64_t epoch = 0;
  std::uint64_t position = 0;
  std::uint64_t updates = 0;
  // The factor of the loss, and the updates since it changed.
  double loss_scale = 1;
  std::uint64_t updates_at_scale = 0;
  // The values that must be the same when the training goes on.
  std::uint64_t batch = 0;
  std::uint64_t seed = 0;
  // The layout of the reducer.
  std::string layout;
  // The values and the momentum of each parameter.
  std::vector<std::vector<float>> weights;
  std::vector<std::vector<float>> momentum;
};

// A checkpoint that cannot be read or written.
struct checkpoint_error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

std::string encode(const checkpoint &state);
// Throws checkpoint_error for bytes that are no checkpoint.
checkpoint decode(std::string_view bytes);

// Replaces a file by these bytes, so that a crash leaves the old file or the new one.
void replace_file(const std::string &path, const std::string &bytes);
// Nothing if there is no such file.
std::optional<std::string> read_file(const std::string &path);

#endif  // TRAIN_DDP_CHECKPOINT_HPP
