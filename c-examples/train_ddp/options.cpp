// Parses the command line of train_ddp. A wrong argument throws usage_error.
#include "options.hpp"

#include <cmath>
#include <cstdlib>
#include <sstream>

// A build can define the path of the file. The default is relative to c-examples.
#ifndef DIGITS_CSV
#define DIGITS_CSV "digits_training/data/digits.csv"
#endif

const char *const help_text =
    "Trains a convolutional network on images of hand-written digits, on all ranks of a job.\n"
    "\n"
    "    distrun --nproc-per-node 4 ./train_ddp [options]\n"
    "\n"
    "  --epochs N         passes over the 1500 training images (20)\n"
    "  --batch N          images of an update, all ranks together (60)\n"
    "  --accumulate N     computes the share of a rank in N parts and communicates once (1)\n"
    "  --lr X             learning rate (0.05)\n"
    "  --seed N           seed of the weights and of the order of images (1)\n"
    "  --clip X           largest norm of the gradients (no limit)\n"
    "  --bf16             gradients in bf16, weights in f32\n"
    "  --loss-scale X     first factor of the loss with --bf16 (65536)\n"
    "  --hook NAME        how gradients are sent: all_reduce, f16, bf16, int8, powersgd, or none, with\n"
    "                     which each rank trains alone; with settings as NAME:NAME=VALUE;NAME=VALUE\n"
    "  --checkpoint FILE  rank 0 writes FILE after each epoch\n"
    "  --resume           continues from the checkpoint if the file exists\n"
    "  --log-steps        prints the loss of each step\n"
    "  --data PATH        the data (" DIGITS_CSV ")\n"
    "  --help             this text\n"
    "\n"
    "The losses do not depend on the number of ranks, except for rounding. Exit status: 0 success;\n"
    "1 the weights of the ranks differ; 2 a wrong option, no data or no checkpoint; 3 a call of\n"
    "libdist failed.\n";

namespace {

double parse_number(const std::string &option, const std::string &text, double low, double high) {
  char *end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0' || !(value >= low && value <= high)) {
    std::ostringstream message;
    message << option << " takes a number from " << low << " to " << high << ", not \"" << text << '"';
    throw usage_error(message.str());
  }
  return value;
}

std::uint64_t parse_count(const std::string &option, const std::string &text, double low, double high) {
  const double value = parse_number(option, text, low, high);
  if (value != std::floor(value)) throw usage_error(option + " takes a whole number, not \"" + text + "\"");
  return static_cast<std::uint64_t>(value);
}

// Sets an option without a value; false for another one.
bool set_flag(options &o, const std::string &option) {
  if (option == "--bf16") return o.bf16 = true;
  if (option == "--resume") return o.resume = true;
  if (option == "--log-steps") return o.log_steps = true;
  if (option == "--help") return o.help = true;
  return false;
}

void set_value(options &o, const std::string &option, const std::string &value) {
  if (option == "--epochs") {
    o.epochs = parse_count(option, value, 1, 1e9);
  } else if (option == "--batch") {
    o.batch = parse_count(option, value, 1, 1500);
  } else if (option == "--accumulate") {
    o.accumulate = parse_count(option, value, 1, 1500);
  } else if (option == "--lr") {
    o.learning_rate = static_cast<float>(parse_number(option, value, 1e-9, 1e3));
  } else if (option == "--seed") {
    o.seed = parse_count(option, value, 0, 4294967295.0);
  } else if (option == "--clip") {
    o.clip = parse_number(option, value, 1e-9, 1e9);
  } else if (option == "--loss-scale") {
    o.loss_scale = parse_number(option, value, 1e-9, 3e38);
  } else if (option == "--hook") {
    const std::size_t colon = value.find(':');
    o.hook = value.substr(0, colon);
    o.hook_settings = colon == std::string::npos ? "" : value.substr(colon + 1);
  } else if (option == "--checkpoint") {
    o.checkpoint = value;
  } else if (option == "--data") {
    o.data = value;
  } else {
    throw usage_error("there is no option \"" + option + "\" (--help shows all)");
  }
}

}  // namespace

options parse_options(int argc, char **argv) {
  options o;
  o.data = DIGITS_CSV;
  for (int i = 1; i < argc; ++i) {
    const std::string option = argv[i];
    if (set_flag(o, option)) continue;
    if (i + 1 == argc) throw usage_error("\"" + option + "\" has no value, or is no option (--help shows all)");
    set_value(o, option, argv[++i]);
  }
  if (o.resume && o.checkpoint.empty()) throw usage_error("--resume needs --checkpoint FILE");
  return o;
}
