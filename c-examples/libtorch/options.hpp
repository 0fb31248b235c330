// The command line of train_convnet.
#ifndef TRAIN_CONVNET_OPTIONS_HPP
#define TRAIN_CONVNET_OPTIONS_HPP

#include <torch/types.h>

#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string>

// A build can define the path of the file. The default is relative to c-examples/libtorch.
#ifndef DIGITS_CSV
#define DIGITS_CSV "../digits_training/data/digits.csv"
#endif

struct options {
  std::string data = DIGITS_CSV;
  std::uint64_t epochs = 5;
  // Images of an update, of all ranks together.
  std::size_t batch = 60;
  // The share of a rank is computed in so many parts.
  std::size_t accumulate = 1;
  double learning_rate = 0.05;
  std::uint64_t seed = 1;
  // The largest norm of the gradients; 0 for no limit.
  double clip = 0;
  torch::ScalarType dtype = torch::kFloat;
  // Files; empty for none. The trace of rank 2 is `trace` followed by "2.json".
  std::string save, compare, trace;
  bool help = false;
};

// A wrong command line.
struct usage_error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

constexpr const char *help_text =
    "Trains a convolutional network of libtorch on images of hand-written digits, on all ranks of a job.\n"
    "\n"
    "    distrun --nproc-per-node 2 ./train_convnet [options]\n"
    "\n"
    "  --epochs N       passes over the 1500 training images (5)\n"
    "  --batch N        images of an update, all ranks together (60)\n"
    "  --accumulate N   computes the share of a rank in N parts and communicates once (1)\n"
    "  --lr X           learning rate (0.05)\n"
    "  --seed N         seed of the weights (1)\n"
    "  --clip X         largest norm of the gradients (no limit)\n"
    "  --double         weights in f64\n"
    "  --save FILE      rank 0 writes the weights to FILE\n"
    "  --compare FILE   rank 0 prints the largest difference from the weights in FILE\n"
    "  --trace PREFIX   each rank writes PREFIX<rank>.json, with operations and backward passes\n"
    "  --data PATH      the data (" DIGITS_CSV ")\n"
    "  --help           this text\n"
    "\n"
    "The weights do not depend on the number of ranks, except for rounding. Exit status: 0 success;\n"
    "1 the weights of the ranks differ, or those of --compare by more than 1e-6; 2 a wrong option or\n"
    "no data; 3 any other error.\n";

// Throws usage_error.
inline double parse_number(const std::string &option, const std::string &text, double low, double high) {
  char *end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0' || !(value >= low && value <= high)) {
    throw usage_error(option + " does not take \"" + text + "\" (--help shows all options)");
  }
  return value;
}

inline void set_value(options &o, const std::string &option, const std::string &value) {
  const auto count = [&](double low, double high) { return static_cast<std::uint64_t>(parse_number(option, value, low, high)); };
  if (option == "--epochs") {
    o.epochs = count(1, 1e9);
  } else if (option == "--batch") {
    o.batch = count(1, 1500);
  } else if (option == "--accumulate") {
    o.accumulate = count(1, 1500);
  } else if (option == "--lr") {
    o.learning_rate = parse_number(option, value, 1e-9, 1e3);
  } else if (option == "--seed") {
    o.seed = count(0, 4294967295.0);
  } else if (option == "--clip") {
    o.clip = parse_number(option, value, 1e-9, 1e9);
  } else if (option == "--save") {
    o.save = value;
  } else if (option == "--compare") {
    o.compare = value;
  } else if (option == "--trace") {
    o.trace = value;
  } else if (option == "--data") {
    o.data = value;
  } else {
    throw usage_error("there is no option \"" + option + "\" (--help shows all)");
  }
}

// Throws usage_error.
inline options parse_options(int argc, char **argv) {
  options o;
  for (int i = 1; i < argc; ++i) {
    const std::string option = argv[i];
    if (option == "--double") {
      o.dtype = torch::kDouble;
    } else if (option == "--help") {
      o.help = true;
    } else if (i + 1 < argc) {
      set_value(o, option, argv[++i]);
    } else {
      throw usage_error("\"" + option + "\" has no value, or is no option (--help shows all)");
    }
  }
  return o;
}

#endif  // TRAIN_CONVNET_OPTIONS_HPP
