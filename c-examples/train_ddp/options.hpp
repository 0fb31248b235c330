// The command line of train_ddp.
#ifndef TRAIN_DDP_OPTIONS_HPP
#define TRAIN_DDP_OPTIONS_HPP

#include <cstdint>
#include <stdexcept>
#include <string>

struct options {
  std::string data;
  std::uint64_t epochs = 20;
  // Images of an update, of all ranks together.
  std::size_t batch = 60;
  // The share of a rank is computed in so many parts.
  std::size_t accumulate = 1;
  float learning_rate = 0.05F;
  std::uint64_t seed = 1;
  // The largest norm of the gradients; 0 for no limit.
  double clip = 0;
  bool bf16 = false;
  // The first factor of the loss with bf16.
  double loss_scale = 65536;
  // The hook of the reducer, and its settings; empty for none.
  std::string hook;
  std::string hook_settings;
  // The file of the checkpoint; empty for none.
  std::string checkpoint;
  bool resume = false;
  // Prints the loss of each step.
  bool log_steps = false;
  bool help = false;
};

// A wrong command line.
struct usage_error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Throws usage_error.
options parse_options(int argc, char **argv);

extern const char *const help_text;

#endif  // TRAIN_DDP_OPTIONS_HPP
