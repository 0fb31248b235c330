// Data-parallel training of a torch::nn::Module: ddp.hpp averages the gradients while autograd
// computes the rest of them.
//
//     distrun --nproc-per-node 2 ./train_convnet
//     distrun --nproc-per-node 2 ./train_convnet --accumulate 3 --clip 1
//     distrun --nproc-per-node 2 ./train_convnet --epochs 1 --trace trace_
//
// All ranks together share the images of one batch. So every number of ranks computes the same
// weights, except for rounding:
//
//     distrun --nproc-per-node 1 ./train_convnet --double --save one.pt
//     distrun --nproc-per-node 2 ./train_convnet --double --compare one.pt
//
// In f32 a rounding error near 0 sometimes makes a ReLU pass a value that it blocks on another
// number of ranks.
#include "ddp.hpp"
#include "options.hpp"

extern "C" {
#include "../digits_training/digits_data.h"
}

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>

namespace {

using steady_time = std::chrono::steady_clock::time_point;

// The images of all digits and their labels, as tensors.
struct digit_tensors {
  torch::Tensor pixels, labels;
};

digit_tensors load_digits(const options &o) {
  const std::unique_ptr<digit_t, void (*)(void *)> digits(digits_load_split(o.data.c_str()), std::free);
  if (!digits) throw usage_error("no data: name the file digits.csv with --data");
  digit_tensors all{torch::empty({DIGITS_ROWS, 1, 8, 8}), torch::empty({DIGITS_ROWS}, torch::kLong)};
  for (std::int64_t i = 0; i < DIGITS_ROWS; ++i) {
    const digit_t &digit = digits.get()[i];
    std::copy_n(digit.pixels, DIGITS_PIXELS, all.pixels.data_ptr<float>() + i * DIGITS_PIXELS);
    all.labels[i] = digit.label;
  }
  all.pixels = all.pixels.to(o.dtype);
  return all;
}

// The begin and end of a backward pass.
struct backward_span {
  steady_time begin, end;
};

// Adds the backward passes of a rank to its trace: a trace viewer shows them above the operations
// of the ranks. Both have the times of the host's monotonic clock, in microseconds.
void append_to_trace(const std::string &path, int rank, const std::vector<backward_span> &passes) {
  std::ofstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-2, std::ios::end);  // the file ends with "]\n"
  const auto us = [](auto time) { return std::chrono::duration<double, std::micro>(time).count(); };
  for (const backward_span &pass : passes) {
    char line[160];
    std::snprintf(line, sizeof line, ",{\"name\":\"backward\",\"ph\":\"X\",\"pid\":%d,\"tid\":0,\"ts\":%.3f,\"dur\":%.3f}\n",
                  rank, us(pass.begin.time_since_epoch()), us(pass.end - pass.begin));
    file << line;
  }
  file << "]\n";
  if (!file.flush()) throw std::runtime_error(path + ": the trace cannot be written");
}

struct convnet_impl : torch::nn::Module {
  convnet_impl() {
    register_module("conv1", conv1);
    register_module("conv2", conv2);
    register_module("fc1", fc1);
    register_module("fc2", fc2);
  }

  torch::Tensor forward(torch::Tensor x) {
    x = torch::max_pool2d(torch::relu(conv1(x)), 2);
    x = torch::max_pool2d(torch::relu(conv2(x)), 2);
    return fc2(torch::relu(fc1(x.flatten(1))));
  }

  torch::nn::Conv2d conv1{torch::nn::Conv2dOptions(1, 16, 3).padding(1)};
  torch::nn::Conv2d conv2{torch::nn::Conv2dOptions(16, 32, 3).padding(1)};
  torch::nn::Linear fc1{128, 256};
  torch::nn::Linear fc2{256, 10};
};
TORCH_MODULE_IMPL(convnet, convnet_impl);

// The network is small. With small buckets the ranks reduce the gradients of fc1 and fc2 during the
// backward pass of conv1 and conv2.
dist::reducer_options small_buckets() {
  dist::reducer_options options;
  options.name = "convnet";
  options.bucket_bytes = 32 << 10;
  return options;
}

class trainer {
 public:
  trainer(dist::group_ref world, const options &o)
      : world_(world),
        options_(o),
        digits_(load_digits(o)),
        network_(make_network(o)),
        ddp_(world, *network_, small_buckets()),
        optimizer_(network_->parameters(), torch::optim::SGDOptions(o.learning_rate).momentum(0.9)),
        sampler_(world, TRAIN_ROWS) {
    if (o.batch % static_cast<std::size_t>(world.size()) != 0) {
      throw usage_error("--batch must be a multiple of the number of ranks");
    }
  }

  void run() {
    for (std::uint64_t epoch = 0; epoch < options_.epochs; ++epoch) {
      sampler_.set_epoch(epoch);
      double loss = 0, batches = 0;
      const std::size_t share = options_.batch / static_cast<std::size_t>(world_.size());
      for (auto images = sampler_.next(share); images.size() == share; images = sampler_.next(share)) {
        loss += train_batch(to_tensor(images));
        ++batches;
      }
      print_epoch(epoch, loss / batches);
    }
  }

  // The spans of the backward passes.
  const std::vector<backward_span> &backward_passes() const { return backward_passes_; }

  void print_reducer_stats() {
    const dist::reducer_stats stats = ddp_.reducer().stats();
    const auto us = [](std::chrono::nanoseconds time) { return static_cast<double>(time.count()) / 1e3; };
    std::printf("last step: %llu buckets, %.0f us of communication, commit() waited for %.0f us\n",
                static_cast<unsigned long long>(stats.buckets), us(stats.communication), us(stats.exposed));
  }

  void save() const {
    if (!options_.save.empty()) torch::save(network_, options_.save);
  }

  // Returns the largest difference between a weight and the same weight of the file.
  double max_weight_difference() const {
    convnet other = make_network(options_);
    torch::load(other, options_.compare);
    double largest = 0;
    const auto own = network_->parameters(), expected = other->parameters();
    for (std::size_t i = 0; i < own.size(); ++i) {
      largest = std::max(largest, (own[i] - expected[i]).abs().max().item<double>());
    }
    return largest;
  }

  // Returns true if all ranks have the same weights. Rank 0 prints the differences.
  bool has_equal_weights() {
    const auto differences = ddp_.reducer().check(dist::model_part::params);
    if (world_.rank() == 0) {
      for (const std::string &difference : differences) std::printf("%s\n", difference.c_str());
    }
    return differences.empty();
  }

 private:
  static convnet make_network(const options &o) {
    torch::manual_seed(o.seed);
    convnet network;
    network->to(o.dtype);
    return network;
  }

  static torch::Tensor to_tensor(const std::vector<std::uint64_t> &images) {
    return torch::tensor(std::vector<std::int64_t>(images.begin(), images.end()));
  }

  torch::Tensor compute_loss(const torch::Tensor &images) {
    const auto scores = network_->forward(digits_.pixels.index_select(0, images));
    return torch::cross_entropy_loss(scores, digits_.labels.index_select(0, images));
  }

  // Trains on this rank's share of a batch. Returns its mean loss.
  double train_batch(const torch::Tensor &images) {
    const auto micro_batches = images.chunk(static_cast<std::int64_t>(options_.accumulate));
    double loss = 0;
    const auto backward = [&](const torch::Tensor &micro_batch) {
      // The sum over the parts is the mean over the share; the reducer averages over the ranks.
      const torch::Tensor micro_batch_loss =
          compute_loss(micro_batch) * (static_cast<double>(micro_batch.size(0)) / static_cast<double>(images.size(0)));
      loss += micro_batch_loss.item<double>();
      const auto begin = std::chrono::steady_clock::now();
      micro_batch_loss.backward();
      backward_passes_.push_back({begin, std::chrono::steady_clock::now()});
    };

    optimizer_.zero_grad();
    // The gradients of all micro-batches but the last one stay on this rank.
    for (std::size_t i = 0; i + 1 < micro_batches.size(); ++i) backward(micro_batches[i]);
    auto step = ddp_.step();
    backward(micro_batches.back());
    if (step.commit() != dist::vote::commit) throw std::runtime_error("another rank could not compute its gradients");
    if (options_.clip > 0) ddp_.reducer().clip(options_.clip);
    optimizer_.step();
    return loss;
  }

  void print_epoch(std::uint64_t epoch, double loss) {
    const torch::NoGradGuard no_grad;
    // This rank's share of the images that are not in the training set.
    const auto images = torch::arange(TRAIN_ROWS + world_.rank(), DIGITS_ROWS, world_.size());
    const auto predictions = network_->forward(digits_.pixels.index_select(0, images)).argmax(1);
    const auto n_correct = predictions.eq(digits_.labels.index_select(0, images)).sum().item<double>();
    std::vector<double> sums{loss / world_.size(), n_correct};
    world_.all_reduce(sums, dist::sum);
    if (world_.rank() != 0) return;
    std::printf("epoch %llu/%llu  loss %.6f  accuracy %.1f %%\n", static_cast<unsigned long long>(epoch + 1),
                static_cast<unsigned long long>(options_.epochs), sums[0], 100 * sums[1] / (DIGITS_ROWS - TRAIN_ROWS));
    std::fflush(stdout);
  }

  dist::group_ref world_;
  options options_;
  digit_tensors digits_;
  convnet network_;
  distributed_data_parallel ddp_;
  torch::optim::SGD optimizer_;
  dist::sampler sampler_;
  std::vector<backward_span> backward_passes_;
};

int train(const options &o) {
  torch::set_num_threads(1);  // the network is too small for several threads
  const dist::runtime runtime;
  const dist::group_ref world = runtime.world();
  const std::string trace_path = o.trace + std::to_string(world.rank()) + ".json";
  std::optional<dist::trace> trace;
  if (!o.trace.empty()) trace.emplace(trace_path);
  trainer job(world, o);
  job.run();
  if (trace) {
    trace->stop();
    append_to_trace(trace_path, world.rank(), job.backward_passes());
  }
  bool is_equal = job.has_equal_weights();
  if (world.rank() == 0) {
    job.print_reducer_stats();
    job.save();
    if (!o.compare.empty()) {
      const double difference = job.max_weight_difference();
      std::printf("largest difference: %.3g\n", difference);
      is_equal = is_equal && difference <= 1e-6;
    }
  }
  return is_equal ? 0 : 1;
}

int fail(const char *message, int status) {
  std::fprintf(stderr, "train_convnet: %s\n", message);
  return status;
}

}  // namespace

int main(int argc, char **argv) {
  try {
    const options o = parse_options(argc, argv);
    if (o.help) return std::fputs(help_text, stdout) < 0 ? 1 : 0;
    return train(o);
  } catch (const usage_error &error) {
    return fail(error.what(), 2);
  } catch (const std::exception &error) {
    return fail(error.what(), 3);
  }
}
