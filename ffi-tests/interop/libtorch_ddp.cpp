// Tests c-examples/libtorch/ddp.hpp on 2 ranks: gradients are averaged in place even if their
// tensors are replaced, and commit() reports the errors of the backward pass.
//
//     distrun --nproc-per-node 2 libtorch_ddp
#include "../../c-examples/libtorch/ddp.hpp"

#include <cstdio>
#include <cstdlib>

namespace {

#define REQUIRE(condition)                                                          \
  do {                                                                              \
    if (!(condition)) {                                                             \
      std::fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition); \
      std::exit(1);                                                                 \
    }                                                                               \
  } while (false)

using torch::Tensor;

constexpr auto commit = dist::vote::commit;

// Two layers without biases, so that the gradient of each weight is simple to compute.
struct two_layers : torch::nn::Module {
  two_layers() {
    first = register_parameter("first", torch::ones({3}));
    second = register_parameter("second", torch::ones({2}));
    frozen = register_parameter("frozen", torch::ones({2}), false);
    mean = register_buffer("mean", torch::zeros({2}));
  }

  Tensor first, second, frozen, mean;
};

bool all_equal_to(const Tensor &tensor, double value) {
  return tensor.defined() && tensor.to(torch::kDouble).eq(value).all().item<bool>();
}

dist::reducer_options with_missing(dist::missing missing) {
  dist::reducer_options options;
  options.missing = missing;
  return options;
}

// Returns a factor of this rank: 1 or 3, with the average 2.
double factor(dist::group_ref world) { return 1 + 2 * world.rank(); }

void backward(two_layers &net, double factor) {
  (net.first.sum() * factor + net.second.sum() * 10 * factor).backward();
}

void values_come_from_rank_0(dist::group_ref world) {
  two_layers net;
  {
    const torch::NoGradGuard no_grad;
    for (Tensor &each : net.parameters()) each.fill_(world.rank() + 5);
    net.mean.fill_(world.rank() + 6);
  }
  distributed_data_parallel ddp(world, net);
  for (const Tensor &each : net.parameters()) REQUIRE(all_equal_to(each, 5));
  REQUIRE(all_equal_to(net.mean, 6));
  REQUIRE((ddp.names() == std::vector<std::string>{"first", "second", "frozen", "mean"}));
  REQUIRE(!net.frozen.grad().defined());
}

void gradients_are_averaged_in_place(dist::group_ref world, torch::ScalarType dtype) {
  two_layers net;
  net.to(dtype);
  distributed_data_parallel ddp(world, net);
  const void *place = net.first.grad().data_ptr();
  for (int i = 0; i < 3; ++i) {
    auto step = ddp.step();
    backward(net, factor(world));
    REQUIRE(step.commit() == commit);
    // Without zero_grad() the gradients are added, as in PyTorch.
    REQUIRE(all_equal_to(net.first.grad(), 2 * (i + 1)) && all_equal_to(net.second.grad(), 20 * (i + 1)));
    REQUIRE(net.first.grad().data_ptr() == place);
  }
}

void replaced_gradients_become_views_again(dist::group_ref world) {
  two_layers net;
  distributed_data_parallel ddp(world, net);
  torch::optim::SGD optimizer(net.parameters(), torch::optim::SGDOptions(1));
  const void *place = net.first.grad().data_ptr();
  for (const bool set_to_none : {true, false}) {
    for (const bool is_inside : {true, false}) {
      if (!is_inside) optimizer.zero_grad(set_to_none);
      auto step = ddp.step();
      if (is_inside) optimizer.zero_grad(set_to_none);
      backward(net, factor(world));
      REQUIRE(step.commit() == commit);
      REQUIRE(all_equal_to(net.first.grad(), 2) && net.first.grad().data_ptr() == place);
    }
  }
  // With create_graph, autograd makes a new tensor of the sum.
  auto step = ddp.step();
  (net.first.pow(2).sum() + net.second.sum()).backward({}, true, true);
  REQUIRE(step.commit() == commit);
  REQUIRE(all_equal_to(net.first.grad(), 4) && net.first.grad().data_ptr() == place);
}

void gradients_accumulate_outside_of_a_step(dist::group_ref world) {
  two_layers net;
  distributed_data_parallel ddp(world, net);
  backward(net, factor(world));
  REQUIRE(all_equal_to(net.first.grad(), factor(world)));
  auto step = ddp.step();
  net.second.sum().backward();  // `first` was used before the step only
  REQUIRE(step.commit() == commit);
  REQUIRE(all_equal_to(net.first.grad(), 2) && all_equal_to(net.second.grad(), 21));
}

void unused_parameters_follow_the_options(dist::group_ref world) {
  {
    two_layers net;
    distributed_data_parallel ddp(world, net, with_missing(dist::missing::zero));
    auto step = ddp.step();
    // Only rank 0 uses `first`, and no rank uses `second`.
    if (world.rank() == 0) net.first.sum().backward();
    REQUIRE(step.commit() == commit);
    REQUIRE(all_equal_to(net.first.grad(), 0.5) && all_equal_to(net.second.grad(), 0));
  }
  two_layers net;
  distributed_data_parallel ddp(world, net);
  std::string message;
  try {
    auto step = ddp.step();
    net.first.sum().backward();
    static_cast<void>(step.commit());
  } catch (const dist::error &failed) {
    message = failed.what();
  }
  REQUIRE(message.find("second") != std::string::npos);
}

void errors_of_hooks_come_from_commit(dist::group_ref world) {
  two_layers net;
  distributed_data_parallel ddp(world, net);
  bool has_failed = false;
  {
    auto step = ddp.step();
    backward(net, 1);
    if (world.rank() == 0) backward(net, 1);  // marks the gradients a second time
    try {
      const dist::vote all = step.commit();
      REQUIRE(world.rank() == 1 && has_vote(all, dist::vote::error));
    } catch (const dist::error &) {
      has_failed = true;
    }
  }
  REQUIRE(has_failed == (world.rank() == 0));
  // An exception that leaves the step.
  try {
    auto step = ddp.step();
    if (world.rank() == 0) throw std::runtime_error("no data");
    backward(net, 1);
    REQUIRE(has_vote(step.commit(), dist::vote::error));
  } catch (const std::runtime_error &) {
    REQUIRE(world.rank() == 0);
  }
  // The next step is unaffected.
  net.zero_grad();
  auto step = ddp.step();
  backward(net, factor(world));
  REQUIRE(step.commit() == commit);
  REQUIRE(all_equal_to(net.first.grad(), 2));
  // The norm of 3 values of 2 and 2 values of 20.
  REQUIRE(std::abs(ddp.reducer().clip(1) - std::sqrt(812)) < 1e-6);
  REQUIRE(net.second.grad().max().item<double>() < 1);
}

// A layer that appears twice, embedding rows, channels as the last dimension, and buffers that each
// step broadcasts.
void layers_of_all_kinds_train(dist::group_ref world) {
  auto linear = torch::nn::Linear(4, 4);
  torch::nn::Sequential net(torch::nn::Embedding(torch::nn::EmbeddingOptions(10, 4).sparse(true)), linear, linear,
                            torch::nn::BatchNorm1d(4));
  auto conv = torch::nn::Conv2d(3, 2, 3);
  net->push_back("conv", conv);
  conv->weight.set_data(conv->weight.contiguous(torch::MemoryFormat::ChannelsLast));
  dist::reducer_options options;
  options.broadcast_buffers = true;
  options.bucket_bytes = 64;
  options.move_grads = true;
  distributed_data_parallel ddp(world, *net, options);
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1));
  for (int i = 0; i < 4; ++i) {
    optimizer.zero_grad(i % 2 == 0);
    auto step = ddp.step();
    Tensor x = torch::arange(5) + world.rank();
    for (std::size_t layer = 0; layer < 4; ++layer) {
      if (layer == 0) x = net[0]->as<torch::nn::Embedding>()->forward(x);
      if (layer == 1 || layer == 2) x = linear->forward(x);
      if (layer == 3) x = net[3]->as<torch::nn::BatchNorm1d>()->forward(x);
    }
    const Tensor images = torch::ones({1, 3, 4, 4}) * (world.rank() + 1);
    (x.pow(3).sum() + conv->forward(images).sum()).backward();
    REQUIRE(step.commit() == commit);
    // The sum over 4 positions, averaged over the ranks.
    REQUIRE(all_equal_to(conv->weight.grad(), 6));
    REQUIRE(conv->weight.grad().is_contiguous(torch::MemoryFormat::ChannelsLast));
    REQUIRE(net[0]->as<torch::nn::Embedding>()->weight.grad().abs().sum().item<double>() > 0);
    optimizer.step();
  }
  REQUIRE(ddp.reducer().check(dist::model_part::params).empty());
}

void misuse_is_reported(dist::group_ref world) {
  two_layers net;
  {
    distributed_data_parallel ddp(world, net);
    net.first.set_data(torch::zeros({3}));
    std::string message;
    try {
      auto step = ddp.step();
    } catch (const std::logic_error &wrong) {
      message = wrong.what();
    }
    REQUIRE(message.find("first") != std::string::npos);
  }
  REQUIRE(!net.first.grad().defined());
  // All hooks are removed.
  backward(net, 1);
  REQUIRE(all_equal_to(net.first.grad(), 1));
}

}  // namespace

int main() {
  torch::set_num_threads(1);
  const dist::runtime runtime;
  const dist::group_ref world = runtime.world();
  REQUIRE(world.size() == 2);
  values_come_from_rank_0(world);
  for (const auto dtype : {torch::kFloat, torch::kDouble, torch::kHalf, torch::kBFloat16}) {
    gradients_are_averaged_in_place(world, dtype);
  }
  replaced_gradients_become_views_again(world);
  gradients_accumulate_outside_of_a_step(world);
  unused_parameters_follow_the_options(world);
  errors_of_hooks_come_from_commit(world);
  layers_of_all_kinds_train(world);
  misuse_is_reported(world);
  std::printf("rank %d: all checks hold\n", world.rank());
}
