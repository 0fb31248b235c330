// The training loop, with all calls to libdist: the reducer averages the gradients, the sampler
// distributes the images, and rank 0 reads and writes checkpoints.
#include "trainer.hpp"

#include "bf16.hpp"

#include <chrono>
#include <cmath>
#include <cstdio>

namespace {

constexpr float momentum_factor = 0.9F;
// With --bf16 the loss scale doubles after so many updates without an overflow.
constexpr std::uint64_t updates_per_scale = 500;

dist::sampler_options sampler_options(const options &o) {
  dist::sampler_options s;
  s.seed = o.seed;
  return s;
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

trainer::trainer(dist::group_ref world, const options &o, const digit_t *digits)
    : world_(world),
      options_(o),
      digits_(digits),
      network_(o.seed),
      sampler_(world, TRAIN_ROWS, sampler_options(o)),
      reducer_(make_reducer()) {}

// All ranks get the weights of rank 0: those of the checkpoint, or the first ones.
dist::reducer trainer::make_reducer() {
  const std::size_t ranks = static_cast<std::size_t>(world_.size());
  if (options_.batch % ranks != 0) {
    throw usage_error("--batch " + std::to_string(options_.batch) + " cannot be shared evenly by " + std::to_string(ranks) +
                      " ranks: choose a multiple");
  }
  for (const parameter &parameter : network_.parameters()) momentum_.emplace_back(parameter.values.size());
  wide_gradients_ = momentum_;
  state_.batch = options_.batch;
  state_.seed = options_.seed;
  state_.loss_scale = options_.bf16 ? options_.loss_scale : 1;
  if (const auto saved = load_checkpoint()) restore(*saved);

  std::vector<dist::param> params;
  for (parameter &parameter : network_.parameters()) {
    // The layer as tag: the gradients of a layer are sent once it is computed, and do not wait for
    // other layers.
    const auto param = dist::param(parameter.name,
                                   parameter.values).with_shape(parameter.shape).with_tag(parameter.layer);
    params.push_back(options_.bf16 ? param.with_grad_type<bf16>() : param);
  }
  dist::reducer_options reducer_options;
  reducer_options.name = "convnet";
  reducer_options.layout = state_.layout;
  // The same bits for every placement of the ranks on hosts.
  reducer_options.canonical = true;
  reducer_options.hook = options_.hook;
  reducer_options.hook_settings = options_.hook_settings;
  dist::reducer reducer(world_, params, reducer_options);

  // In f32 the network writes its gradients where they are reduced.
  auto &all = network_.parameters();
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i].gradient = options_.bf16 ? wide_gradients_[i].data() : reducer.grad<float>(i).data;
  }
  return reducer;
}

void trainer::run() {
  while (state_.epoch < options_.epochs) {
    train_epoch();
    ++state_.epoch;
    state_.position = 0;
    save_checkpoint();
  }
}

void trainer::train_epoch() {
  const auto begin = std::chrono::steady_clock::now();
  const std::size_t share = options_.batch / static_cast<std::size_t>(world_.size());
  progress done;
  sampler_.set_epoch(state_.epoch);
  sampler_.seek(state_.position);
  for (auto images = sampler_.next(share); !images.empty(); images = sampler_.next(share)) {
    const double loss = train_batch(images);
    done.loss += loss;
    done.images += static_cast<double>(images.size());
    if (options_.log_steps) {
      const double mean = world_.all_reduce_value(loss / static_cast<double>(images.size()), dist::avg);
      if (world_.rank() == 0) std::printf("step %llu  loss %.9f\n", static_cast<unsigned long long>(state_.updates), mean);
    }
  }
  print_epoch(done, seconds_since(begin));
}

// Trains on this rank's share of a batch. Returns the sum of its losses.
double trainer::train_batch(const std::vector<std::uint64_t> &images) {
  for (parameter &parameter : network_.parameters()) std::fill_n(parameter.gradient, parameter.values.size(), 0.0F);
  // The reducer averages over the ranks, which have equally many images.
  const float factor = static_cast<float>(state_.loss_scale) / static_cast<float>(images.size());
  double loss = 0;
  const std::size_t last = options_.accumulate - 1;
  for (std::size_t micro_batch = 0; micro_batch < last; ++micro_batch) {
    const auto local = reducer_.accumulate();
    loss += forward(images, micro_batch);
    network_.backward(factor, [](std::size_t) {});
  }

  auto step = reducer_.step();
  dist::vote own = dist::vote::commit;
  loss += forward(images, last);
  network_.backward(factor, [&](std::size_t param) {
    if (!store_gradient(param)) own = dist::vote::non_finite;
    step.ready(param);  // this gradient is reduced while the next ones are computed
  });
  const dist::vote votes = step.commit(own);
  const dist::reducer_stats stats = reducer_.stats();
  traffic_.gradients += static_cast<double>(stats.bytes_reduced);
  traffic_.sent += static_cast<double>(stats.bytes_reduced - stats.bytes_saved);
  apply_update(votes);
  return loss;
}

// Computes one micro-batch of this rank's share.
double trainer::forward(const std::vector<std::uint64_t> &images, std::size_t micro_batch) {
  const std::size_t begin = images.size() * micro_batch / options_.accumulate;
  const std::size_t end = images.size() * (micro_batch + 1) / options_.accumulate;
  std::vector<const digit_t *> digits;
  for (std::size_t i = begin; i < end; ++i) digits.push_back(&digits_[images[i]]);
  return network_.forward(digits);
}

// Copies a complete gradient into the reducer's memory. Returns false if it is not finite.
bool trainer::store_gradient(std::size_t param) {
  const parameter &from = network_.parameters()[param];
  const dist::buffer<bf16> narrow = options_.bf16 ? reducer_.grad<bf16>(param) : dist::buffer<bf16>{};
  bool is_finite = true;
  for (std::size_t i = 0; i < from.values.size(); ++i) {
    float value = from.gradient[i];
    if (options_.bf16) {
      narrow[i] = to_bf16(value);
      value = to_float(narrow[i]);
    }
    is_finite = is_finite && std::isfinite(value);
  }
  return is_finite;
}

// Updates the weights, unless a gradient is not finite. All ranks have the same votes and the same
// norm, so all of them make the same decision. With --hook none the norms may differ, and with them
// the updates.
void trainer::apply_update(dist::vote votes) {
  if (has_vote(votes, dist::vote::error)) throw std::runtime_error("another rank could not compute its gradients");
  bool has_overflow = has_vote(votes, dist::vote::non_finite);
  if (!has_overflow) {
    // The gradients have the factor of the loss, and so has their norm. Finite gradients may have
    // an infinite sum.
    const double norm = reducer_.clip(options_.clip > 0 ? options_.clip * state_.loss_scale : INFINITY);
    has_overflow = !std::isfinite(norm);
  }
  if (has_overflow && !options_.bf16) throw std::runtime_error("a gradient is infinite or NaN: choose a smaller --lr");
  if (!has_overflow) update_weights();
  ++state_.updates;
  if (options_.bf16) adapt_loss_scale(has_overflow);
}

// SGD with momentum, in f32.
void trainer::update_weights() {
  const float factor = static_cast<float>(1 / state_.loss_scale);
  auto &all = network_.parameters();
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto wide = options_.bf16 ? dist::buffer<float>{} : reducer_.result<float>(i);
    const auto narrow = options_.bf16 ? reducer_.result<bf16>(i) : dist::buffer<bf16>{};
    for (std::size_t j = 0; j < all[i].values.size(); ++j) {
      const float gradient = factor * (options_.bf16 ? to_float(narrow[j]) : wide[j]);
      momentum_[i][j] = momentum_factor * momentum_[i][j] + gradient;
      all[i].values[j] -= options_.learning_rate * momentum_[i][j];
    }
  }
}

// A smaller factor after an overflow, a larger one after many updates without one.
void trainer::adapt_loss_scale(bool has_overflow) {
  ++state_.updates_at_scale;
  if (has_overflow) {
    state_.loss_scale /= 2;
  } else if (state_.updates_at_scale >= updates_per_scale && state_.loss_scale < 1e30) {
    state_.loss_scale *= 2;
  } else {
    return;
  }
  state_.updates_at_scale = 0;
}

// Classifies this rank's share of the held-out images. If each rank has its own weights, rank 0
// classifies all images.
trainer::evaluation trainer::evaluate() {
  if (trains_without_exchange() && world_.rank() != 0) return {};
  std::vector<const digit_t *> images;
  const int ranks = trains_without_exchange() ? 1 : world_.size();
  for (int i = TRAIN_ROWS + world_.rank(); i < DIGITS_ROWS; i += ranks) images.push_back(&digits_[i]);
  network_.forward(images);
  return {static_cast<double>(images.size()), static_cast<double>(network_.count_correct())};
}

void trainer::print_epoch(const progress &sums_of_rank, double seconds) {
  const evaluation own = evaluate();
  std::vector<double> sums{sums_of_rank.loss, sums_of_rank.images, own.correct, own.images};
  world_.all_reduce(sums, dist::sum);
  if (world_.rank() != 0) return;
  std::printf("epoch %2llu/%llu  loss %.6f  accuracy %.1f %%  %.0f samples/s\n",
              static_cast<unsigned long long>(state_.epoch + 1), static_cast<unsigned long long>(options_.epochs),
              sums[0] / sums[1], 100 * sums[2] / sums[3], sums[1] / seconds);
  std::fflush(stdout);
}

// Rank 0 reads the file, so that other hosts need none. Nothing if there is no file.
std::optional<checkpoint> trainer::load_checkpoint() {
  if (!options_.resume) return std::nullopt;
  std::optional<std::string> own;
  if (world_.rank() == 0) own = read_file(options_.checkpoint);
  const std::string bytes = world_.broadcast_bytes(own.value_or(""), 0).str();
  if (bytes.empty()) return std::nullopt;
  try {
    return decode(bytes);
  } catch (const checkpoint_error &error) {
    throw checkpoint_error(options_.checkpoint + ": " + error.what());
  }
}

void trainer::restore(const checkpoint &saved) {
  if (saved.batch != options_.batch || saved.seed != options_.seed) {
    throw checkpoint_error(options_.checkpoint + ": the checkpoint is of --batch " + std::to_string(saved.batch) + " --seed " +
                           std::to_string(saved.seed) + ": use the same options");
  }
  auto &all = network_.parameters();
  if (saved.weights.size() != all.size() || saved.momentum.size() != all.size()) {
    throw checkpoint_error(options_.checkpoint + ": the checkpoint is of another network");
  }
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (saved.weights[i].size() != all[i].values.size() || saved.momentum[i].size() != all[i].values.size()) {
      throw checkpoint_error(options_.checkpoint + ": parameter " + all[i].name + " has another size");
    }
    all[i].values = saved.weights[i];
  }
  momentum_ = saved.momentum;
  state_ = saved;
  state_.weights.clear();
  state_.momentum.clear();
  if (world_.rank() == 0) {
    std::printf("continues with epoch %llu from %s\n", static_cast<unsigned long long>(state_.epoch + 1),
                options_.checkpoint.c_str());
  }
}

void trainer::save_checkpoint() {
  if (options_.checkpoint.empty() || world_.rank() != 0) return;
  checkpoint saved = state_;
  saved.layout = reducer_.layout();
  for (const parameter &parameter : network_.parameters()) saved.weights.push_back(parameter.values);
  saved.momentum = momentum_;
  replace_file(options_.checkpoint, encode(saved));
}

// With --hook none the ranks exchange no gradients.
bool trainer::trains_without_exchange() const { return options_.hook == "none"; }

bool trainer::report() {
  const auto differences = reducer_.check(dist::model_part::params);
  const bool is_correct = differences.empty() || trains_without_exchange();
  if (world_.rank() != 0) return is_correct;
  for (const std::string &parameter : differences) {
    if (!is_correct) std::printf("%s\n", parameter.c_str());
  }
  if (!options_.hook.empty()) {
    std::printf("hook %s: sent %.0f of %.0f bytes of gradients (%.4f), ", options_.hook.c_str(), traffic_.sent,
                traffic_.gradients, traffic_.gradients > 0 ? traffic_.sent / traffic_.gradients : 0);
  }
  std::printf("weights %s on %d ranks\n", differences.empty() ? "identical" : "different", world_.size());
  return is_correct;
}
