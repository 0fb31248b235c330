// The outer optimizer: ranks that train alone for many steps, and then average their changes (local SGD, DiLoCo).
#ifndef DIST_OUTER_HPP
#define DIST_OUTER_HPP

#include "reducer.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

DIST_HPP_BEGIN

/// A parameter that the function of outer_options updates. It is valid during the function.
struct outer_update {
  /// The index of the parameter.
  std::size_t param;
  /// The global values, which the function changes.
  buffer<float> global;
  /// The mean over the ranks of the global values less the values of the rank.
  buffer<const float> pseudo_grad;
  /// Memory of the function for this parameter, zeros at first. dist::outer saves and loads it with the global values.
  buffer<float> state;
};

/// Options of an outer optimizer: the same on all ranks, except `timeout` and `name`.
struct outer_options {
  /// The number of steps of a rank between two updates of the same parameters; required.
  std::uint64_t every = 0;
  /// The number of fragments. Each fragment has some of the parameters, and the fragments are updated at different steps.
  std::size_t fragments = 1;
  /// "nesterov" or empty; "sgd"; or "average": the global values become the mean of the ranks' values. With `function`, its
  /// name, which the ranks compare.
  std::string optimizer{};
  /// The learning rate of "nesterov" and "sgd"; 0 for 0.7.
  double learning_rate = 0;
  /// The momentum of "nesterov"; 0 for 0.9.
  double momentum = 0;
  /// An optimizer of the program, in place of a built-in one. It computes the same bits on all ranks, and must not call the
  /// library.
  ///
  /// outer::step calls it on its own thread, for each parameter of a fragment. The outer optimizer keeps a copy of the function
  /// until it is destroyed. If an exception leaves the function, std::terminate ends the program.
  std::function<void(const outer_update &)> function{};
  /// How the ranks reduce their changes: "all_reduce" or empty; "f16", "bf16", "int8" or "powersgd", which send fewer bytes.
  std::string hook{};
  /// Settings of the hook, as name=value;name=value.
  std::string hook_settings{};
  /// The time-out of each operation; the default is the group's.
  time_limit timeout{};
  /// The name of the model in the log.
  std::string name{};
};

/// The result of outer::step.
struct outer_step {
  /// The index of the fragment that was due; none if this step was without communication.
  std::optional<std::size_t> fragment;
  /// The votes of all ranks; vote::commit if no fragment was due.
  vote votes;
};

/// Figures of an outer optimizer on this rank.
struct outer_stats {
  /// The calls of outer::step, without repetitions.
  std::uint64_t steps;
  /// How often a fragment was updated.
  std::uint64_t updates;
  /// How often the ranks restored a fragment because a rank voted against its update.
  std::uint64_t restores;
  /// The bytes that were reduced, and how many of them the hook did not have to send.
  std::uint64_t bytes_reduced;
  std::uint64_t bytes_saved;
  /// The time of all operations.
  std::chrono::nanoseconds communication;
};

namespace detail {

/// A function of the caller that updates parameters.
struct outer_function final : moved_in {
  explicit outer_function(std::function<void(const outer_update &)> f) : function(std::move(f)) {}

  static void call(std::size_t param, float *global, const float *pseudo_grad, float *state, std::size_t count,
                   void *user) noexcept {
    static_cast<outer_function *>(user)->function(outer_update{param, {global, count}, {pseudo_grad, count}, {state, count}});
  }

  std::function<void(const outer_update &)> function;
};

}  // namespace detail

/// Lets each rank train alone, and updates the parameters of all ranks once in many steps (local SGD, DiLoCo).
///
///     dist::outer_options options;
///     options.every = 500;
///     dist::outer outer(world, {{"w", weights}, {"b", biases}}, options);
///     for (int i = 0; i < steps; ++i) {
///       train(weights, biases);
///       outer.step();                                      // each 500th call communicates
///     }
///
/// Each rank trains with an optimizer of its own. The constructor sends the parameters of rank 0 to all ranks. They become the
/// global values, which are the same on all ranks. In an update the outer optimizer changes the global values by the mean
/// change of the ranks. Then the parameters of all ranks become the global values. All ranks call step() equally often.
///
/// It borrows the parameters: `float`, `double` or 16-bit types in host memory. Their gradients are not used, and frozen
/// parameters and buffers stay as they are. The group must outlive its use, but regroup() passes another one.
class outer {
 public:
#if DIST_HPP_HAS_EXCEPTIONS
  outer(group_ref group, const std::vector<param> &params, const outer_options &o) : outer(make(group, params, o)) {}
#endif

  /// As the constructor. Failures are reported as by every other function.
  template <class E = detail::default_errors>
  [[nodiscard]] static detail::outcome<E, outer> make(group_ref group, const std::vector<param> &params,
                                                     const outer_options &o, E = E{}) {
    std::vector<dist_param_t> all;
    for (const param &each : params) all.push_back(each.get());
    std::unique_ptr<detail::outer_function> function;
    if (o.function) function = std::make_unique<detail::outer_function>(o.function);
    const dist_outer_options_t c = c_options(o, function.get());
    dist_outer_t *handle = nullptr;
    const dist_status_t status = dist_outer_create(group.get(), all.data(), all.size(), &c, &handle);
    return detail::finish<E>(status, outer(handle, std::move(function)));
  }

  outer(outer &&other) noexcept
      : handle_(std::exchange(other.handle_, nullptr)), function_(std::move(other.function_)) {}
  outer &operator=(outer &&other) noexcept {
    std::swap(handle_, other.handle_);
    std::swap(function_, other.function_);
    return *this;
  }
  ~outer() { dist_outer_release(handle_); }

  /// Ends a step of this rank. If a fragment is due, waits for the other ranks, and updates the fragment.
  ///
  /// If the votes of all ranks are not vote::commit, the fragment is not updated: its parameters become the global values
  /// from before. After a failure, pass another group to regroup(), and repeat the call, which counts no further step.
  template <class E = detail::default_errors>
  detail::outcome<E, outer_step> step(vote own = vote::commit, E = E{}) {
    std::int64_t fragment = -1;
    std::uint64_t votes = 0;
    const dist_status_t status = dist_outer_step(handle_, static_cast<std::uint64_t>(own), &fragment, &votes);
    outer_step done{std::nullopt, static_cast<vote>(votes)};
    if (fragment >= 0) done.fragment = static_cast<std::size_t>(fragment);
    return detail::finish<E>(status, done);
  }

  /// Goes on in another group, for example that of group_ref::shrink. A rank that joins the group calls the constructor while
  /// the others call regroup().
  template <class E = detail::default_errors>
  detail::outcome<E, void> regroup(group_ref group, E = E{}) {
    return detail::finish<E>(dist_outer_regroup(handle_, group.get()));
  }

  /// The global values of a parameter, valid as long as the outer optimizer.
  template <class E = detail::default_errors>
  [[nodiscard]] detail::outcome<E, buffer<float>> global(std::size_t param, E = E{}) const {
    float *values = nullptr;
    std::size_t count = 0;
    const dist_status_t status = dist_outer_values(handle_, param, &values, nullptr, &count);
    return detail::finish<E>(status, buffer<float>{values, count});
  }

  /// The state of the optimizer for a parameter, valid as long as the outer optimizer. Empty if the optimizer has no state, as
  /// "sgd" and "average".
  template <class E = detail::default_errors>
  [[nodiscard]] detail::outcome<E, buffer<float>> state(std::size_t param, E = E{}) const {
    float *values = nullptr;
    float *state = nullptr;
    std::size_t count = 0;
    const dist_status_t status = dist_outer_values(handle_, param, &values, &state, &count);
    return detail::finish<E>(status, buffer<float>{state, state == nullptr ? 0 : count});
  }

  /// The global values, the states and the number of steps, as bytes for a checkpoint. They are the same on all ranks. Steps of
  /// this rank since the last update are only in its parameters, which the caller saves.
  template <class E = detail::default_errors>
  [[nodiscard]] detail::outcome<E, blob> save(E = E{}) const {
    blob bytes;
    const dist_status_t status = dist_outer_save(handle_, bytes.out());
    return detail::finish<E>(status, std::move(bytes));
  }

  /// Restores on all ranks the bytes of save() that the rank `root` passes. The bytes of the other ranks are not used. The
  /// parameters of all ranks become the global values.
  template <class E = detail::default_errors>
  detail::outcome<E, void> load(byte_view bytes, int root, E = E{}) {
    return detail::finish<E>(dist_outer_load(handle_, bytes.data(), bytes.size(), root));
  }

  template <class E = detail::default_errors>
  [[nodiscard]] detail::outcome<E, outer_stats> stats(E = E{}) const {
    dist_outer_stats_t c = DIST_OUTER_STATS_INIT;
    const dist_status_t status = dist_outer_stats(handle_, &c);
    const auto communication = static_cast<std::int64_t>(c.communication_ns);
    return detail::finish<E>(status, outer_stats{c.steps, c.updates, c.restores, c.bytes_reduced, c.bytes_saved,
                                                 std::chrono::nanoseconds(communication)});
  }

  dist_outer_t *get() const noexcept { return handle_; }

 private:
  outer(dist_outer_t *handle, std::unique_ptr<detail::outer_function> function) noexcept
      : handle_(handle), function_(std::move(function)) {}

  static dist_outer_options_t c_options(const outer_options &o, detail::outer_function *function) noexcept {
    dist_outer_options_t c = DIST_OUTER_OPTIONS_INIT;
    c.every = o.every;
    c.fragments = o.fragments;
    c.optimizer = detail::text_or_null(o.optimizer);
    c.learning_rate = o.learning_rate;
    c.momentum = o.momentum;
    c.function = function == nullptr ? nullptr : detail::outer_function::call;
    c.user = function;
    c.timeout_ms = o.timeout.ms();
    c.hook = detail::text_or_null(o.hook);
    c.hook_settings = detail::text_or_null(o.hook_settings);
    c.name = detail::text_or_null(o.name);
    return c;
  }

  dist_outer_t *handle_;
  /// The function of the options, at an address that stays the same when this object is moved.
  std::unique_ptr<detail::outer_function> function_;
};

DIST_HPP_END

#endif  // DIST_OUTER_HPP
