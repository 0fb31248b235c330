// The reducer: gradients that are averaged over all ranks while the backward pass computes the next ones.
#ifndef DIST_REDUCER_HPP
#define DIST_REDUCER_HPP

#include "reducer_handle.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

DIST_HPP_BEGIN

/// A step of a reducer, as a scope. It ends with commit().
///
///     auto step = reducer.step();
///     for (std::size_t layer = layers; layer-- > 0;) {
///       backward(layer);
///       step.ready(layer);                              // its gradient is reduced while the next one is computed
///     }
///     if (step.commit() == dist::vote::commit) update();
///
/// A step that is left without commit(), for example by an exception, ends with vote::error: the other ranks get this
/// vote from their commit(), and none waits for the missing gradients. The destructor waits for the end of the step.
class [[nodiscard]] step : public detail::reducer_handle {
 public:
  step(step &&other) noexcept
      : reducer_handle(std::exchange(other.handle_, nullptr), std::move(other.hook_)), is_local_(other.is_local_) {}
  step &operator=(step &&) = delete;
  ~step() {
    if (handle_ == nullptr) return;
    // A step without communication has no other ranks to tell. Errors are those of the exception, or of the next call.
    const std::uint64_t own = is_local_ ? DIST_VOTE_COMMIT : DIST_VOTE_ERROR;
    static_cast<void>(dist_reducer_end(handle_, own, nullptr, nullptr) == DIST_OK);
  }

  /// Ends the step, and returns the votes of all ranks. If these are not vote::commit, the caller leaves the update out.
  /// The scope is over then, also after an error.
  template <class E = detail::default_errors>
  detail::outcome<E, vote> commit(vote own = vote::commit, E = E{}) {
    return end_of<E>(std::exchange(handle_, nullptr), own);
  }

  /// As commit, without waiting. Functions of reducer::on_bucket may still run after the work has ended.
  template <class E = detail::default_errors>
  [[nodiscard]] detail::outcome<E, step_work> commit_async(vote own = vote::commit, E = E{}) {
    return end_of_async<E>(std::exchange(handle_, nullptr), own);
  }

 private:
  friend class reducer;
  step(dist_reducer_t *handle, std::shared_ptr<detail::hook_failure> hook, bool is_local) noexcept
      : reducer_handle(handle, std::move(hook)), is_local_(is_local) {}

  bool is_local_;
};

/// Averages the gradients of a model over the ranks of a group.
///
///     dist::reducer reducer(world, {{"w", weights}, {"b", biases}});
///     auto step = reducer.step();
///     backward(reducer.grad<float>(0), reducer.grad<float>(1));
///     step.ready({1, 0});
///     if (step.commit() == dist::vote::commit) update(weights, reducer.result<float>(0));
///
/// It borrows the parameters. The group must outlive its use, but reducer::regroup passes another one.
class reducer : public detail::reducer_handle {
 public:
#if DIST_HPP_HAS_EXCEPTIONS
  reducer(group_ref group, const std::vector<param> &params, const reducer_options &o = {})
      : reducer(make(group, params, o)) {}
#endif

  /// As the constructor. Failures are reported as by every other function.
  template <class E = detail::default_errors>
  [[nodiscard]] static detail::outcome<E, reducer> make(group_ref group, const std::vector<param> &params,
                                                       const reducer_options &o = {}, E = E{}) {
    std::vector<dist_param_t> all;
    for (const param &each : params) {
      if (!each.has_fitting_grad()) {
        return detail::refuse<E, reducer>("dist_reducer_create: the gradient of parameter \"" + each.name() +
                                          "\" has another size than its values; pass as many elements");
      }
      all.push_back(each.get());
    }
    dist_reducer_options_t c = c_options(o);
    std::unique_ptr<detail::hook_owner> hook;
    if (o.hook_function) {
      hook = std::make_unique<detail::hook_owner>(o.hook_function);
      c.hook_function = detail::hook_owner::call;
      c.hook_user = hook.get();
    }
    dist_reducer_t *handle = nullptr;
    const dist_status_t status = dist_reducer_create(group.get(), all.data(), all.size(), &c, &handle);
    return detail::finish<E>(status, reducer(handle, all, std::move(hook)));
  }

  reducer(reducer &&other) noexcept
      : reducer_handle(std::exchange(other.handle_, nullptr), std::move(other.hook_)),
        value_types_(std::move(other.value_types_)),
        grad_types_(std::move(other.grad_types_)),
        row_sizes_(std::move(other.row_sizes_)),
        functions_(std::move(other.functions_)) {}
  reducer &operator=(reducer &&other) noexcept {
    std::swap(handle_, other.handle_);
    std::swap(hook_, other.hook_);
    std::swap(value_types_, other.value_types_);
    std::swap(grad_types_, other.grad_types_);
    std::swap(row_sizes_, other.row_sizes_);
    std::swap(functions_, other.functions_);
    return *this;
  }
  ~reducer() { dist_reducer_release(handle_); }

  /// The memory where the gradient of a parameter is to be written. T is its element type.
  template <class T, class E = detail::default_errors>
  [[nodiscard]] detail::outcome<E, buffer<T>> grad(std::size_t param, E = E{}) const {
    return place<T, E>(dist_reducer_grad, param);
  }
  /// The reduced gradient of a parameter after a step.
  template <class T, class E = detail::default_errors>
  [[nodiscard]] detail::outcome<E, buffer<T>> result(std::size_t param, E = E{}) const {
    return place<T, E>(dist_reducer_result, param);
  }

  /// The reduced rows of a sparse gradient after a step, valid until the next step ends.
  template <class T, class E = detail::default_errors>
  [[nodiscard]] detail::outcome<E, sparse_rows<T>> rows(std::size_t param, E = E{}) const {
    if (const std::string wrong = wrong_type<T>(param); !wrong.empty()) return detail::refuse<E, sparse_rows<T>>(wrong);
    const std::int64_t *rows = nullptr;
    void *values = nullptr;
    std::size_t n = 0;
    const dist_status_t status = dist_reducer_rows(handle_, param, &rows, &values, &n);
    const std::size_t width = param < size() ? row_sizes_[param] : 0;
    return detail::finish<E>(status, sparse_rows<T>{{rows, n}, {static_cast<T *>(values), n * width}});
  }

  /// Begins a step. The weight counts with divide::weighted: the number of samples, for example.
  template <class E = detail::default_errors>
  [[nodiscard]] detail::outcome<E, dist::step> step(double weight = 1, E = E{}) {
    return scope<E>(weight, 0);
  }

  /// Begins a step without communication. Its gradients stay on this rank, and the caller adds those of the next step to them.
  template <class E = detail::default_errors>
  [[nodiscard]] detail::outcome<E, dist::step> accumulate(E = E{}) {
    return scope<E>(0, DIST_STEP_NO_SYNC);
  }

  /// A step without a scope, for programs that begin and end it in different functions. `flags` is DIST_STEP_NO_SYNC or 0.
  template <class E = detail::default_errors>
  detail::outcome<E, void> begin(double weight = 1, std::uint64_t flags = 0, E = E{}) {
    return detail::finish<E>(dist_reducer_begin(handle_, weight, flags));
  }
  /// Ends it, and returns the votes of all ranks. After regroup() it repeats a step whose commit() failed.
  template <class E = detail::default_errors>
  detail::outcome<E, vote> end(vote own = vote::commit, E = E{}) {
    return end_of<E>(handle_, own);
  }
  template <class E = detail::default_errors>
  [[nodiscard]] detail::outcome<E, step_work> end_async(vote own = vote::commit, E = E{}) {
    return end_of_async<E>(handle_, own);
  }

  /// Scales the gradients of the last step so that their norm is at most `max_norm`. Returns the norm before that.
  template <class E = detail::default_errors>
  detail::outcome<E, double> clip(double max_norm, double norm_type = 2, E = E{}) {
    double norm = 0;
    const dist_status_t status = dist_reducer_clip(handle_, max_norm, norm_type, &norm);
    return detail::finish<E>(status, norm);
  }

  /// Calls a function with each bucket whose gradients are reduced: `f(const dist::bucket &)`. It must not block.
  /// The function runs on the thread of completion callbacks, and lives as long as the reducer.
  template <class F, class E = detail::default_errors>
  detail::outcome<E, void> on_bucket(F function, E = E{}) {
    using owner = detail::bucket_function<F>;
    auto owned = std::make_unique<owner>(std::move(function));
    const dist_status_t status = dist_reducer_on_bucket(handle_, owner::call, owned.get());
    // A call of an earlier function may not have returned yet: all functions are kept.
    if (status == DIST_OK) functions_.push_back(std::move(owned));
    return detail::finish<E>(status);
  }
  /// Calls no function any more.
  template <class E = detail::default_errors>
  detail::outcome<E, void> on_bucket(std::nullptr_t, E = E{}) {
    return detail::finish<E>(dist_reducer_on_bucket(handle_, nullptr, nullptr));
  }

  /// Copies the values of one rank to all ranks.
  template <class E = detail::default_errors>
  detail::outcome<E, void> broadcast(int root, model_part what = model_part::params | model_part::buffers, E = E{}) {
    return detail::finish<E>(dist_reducer_broadcast(handle_, root, static_cast<std::uint64_t>(what)));
  }

  /// Compares values that should be the same on all ranks. Returns a text for each parameter that differs.
  template <class E = detail::default_errors>
  [[nodiscard]] detail::outcome<E, std::vector<std::string>> check(
      model_part what = model_part::params | model_part::buffers, E = E{}) {
    blob differences;
    const dist_status_t status = dist_reducer_check(handle_, static_cast<std::uint64_t>(what), differences.out());
    return detail::finish<E>(status, differences.strings());
  }

  /// Takes part in the steps of the other ranks after this rank has run out of data. Returns the number of these steps.
  template <class E = detail::default_errors>
  detail::outcome<E, std::uint64_t> join(E = E{}) {
    std::uint64_t steps = 0;
    const dist_status_t status = dist_reducer_join(handle_, &steps);
    if (status != DIST_OK) return detail::fail_step<E, std::uint64_t>(status, hook_);
    return steps;
  }

  /// Goes on in another group. A failed step of a retryable reducer is open again, and end() repeats it.
  template <class E = detail::default_errors>
  detail::outcome<E, void> regroup(group_ref group, E = E{}) {
    return detail::finish<E>(dist_reducer_regroup(handle_, group.get()));
  }

  /// The buckets, as a text in JSON for a checkpoint: see reducer_options::layout.
  template <class E = detail::default_errors>
  [[nodiscard]] detail::outcome<E, std::string> layout(E = E{}) const {
    blob text;
    const dist_status_t status = dist_reducer_layout(handle_, text.out());
    return detail::finish_text<E>(status, text);
  }

  template <class E = detail::default_errors>
  [[nodiscard]] detail::outcome<E, reducer_stats> stats(E = E{}) const {
    dist_reducer_stats_t c = DIST_REDUCER_STATS_INIT;
    const dist_status_t status = dist_reducer_stats(handle_, &c);
    return detail::finish<E>(status, reducer_stats{c.steps, c.n_buckets, c.bytes_reduced, c.bytes_saved, c.bytes_copied,
                                                   nanoseconds(c.first_ready_to_last_ready_ns),
                                                   nanoseconds(c.communication_ns), nanoseconds(c.exposed_ns),
                                                   nanoseconds(c.step_ns), c.rebuilds, c.retries});
  }

  /// Parameters, buckets, options, and sums over all steps, as JSON.
  template <class E = detail::default_errors>
  [[nodiscard]] detail::outcome<E, std::string> describe(E = E{}) const {
    blob json;
    const dist_status_t status = dist_reducer_describe(handle_, json.out());
    return detail::finish_text<E>(status, json);
  }

  /// The number of parameters.
  std::size_t size() const noexcept { return grad_types_.size(); }

 private:
  friend class shard;

  reducer(dist_reducer_t *handle, const std::vector<dist_param_t> &params, std::unique_ptr<detail::hook_owner> hook)
      : reducer_handle(handle, hook == nullptr ? nullptr : hook->failure()) {
    if (hook != nullptr) functions_.push_back(std::move(hook));
    for (const dist_param_t &each : params) {
      value_types_.push_back(each.dtype);
      grad_types_.push_back(each.grad_dtype);
      const std::size_t rows = each.n_shape == 0 || each.shape[0] <= 0 ? 1 : static_cast<std::size_t>(each.shape[0]);
      row_sizes_.push_back(each.count / rows);
    }
  }

  /// The error text for elements of another type than those of a gradient; empty if T is right.
  template <class T>
  std::string wrong_type(std::size_t index) const {
    static_assert(is_reducible_v<T>, "no element type of the library: specialise dist::dtype_of for it");
    if (index >= size() || grad_types_[index] == dtype_v<T>) return {};
    return "dist::reducer: the gradient of parameter " + std::to_string(index) + " has elements of " +
           name_of_dtype(grad_types_[index]) + ", not of " + name_of_dtype(dtype_v<T>);
  }

  template <class E>
  detail::outcome<E, dist::step> scope(double weight, std::uint64_t flags) {
    const dist_status_t status = dist_reducer_begin(handle_, weight, flags);
    return detail::finish<E>(status, dist::step(status == DIST_OK ? handle_ : nullptr, hook_, flags != 0));
  }

  template <class T, class E, class F>
  detail::outcome<E, buffer<T>> place(F function, std::size_t index) const {
    if (const std::string wrong = wrong_type<T>(index); !wrong.empty()) return detail::refuse<E, buffer<T>>(wrong);
    void *data = nullptr;
    std::size_t count = 0;
    const dist_status_t status = function(handle_, index, &data, &count);
    return detail::finish<E>(status, buffer<T>{static_cast<T *>(data), count});
  }

  static dist_reducer_options_t c_options(const reducer_options &o) noexcept {
    dist_reducer_options_t c = DIST_REDUCER_OPTIONS_INIT;
    c.flags = (o.retryable ? DIST_REDUCER_RETRYABLE : 0U) | (o.canonical ? DIST_REDUCER_CANONICAL : 0U) |
              (o.fixed_layout ? DIST_REDUCER_FIXED_LAYOUT : 0U) | (o.move_grads ? DIST_REDUCER_MOVE_GRADS : 0U) |
              (o.static_graph ? DIST_REDUCER_STATIC_GRAPH : 0U) |
              (o.broadcast_buffers ? DIST_REDUCER_BROADCAST_BUFFERS : 0U) | (o.uneven ? DIST_REDUCER_UNEVEN : 0U) |
              (o.sharded ? DIST_REDUCER_SHARDED : 0U) | (o.share_grads ? DIST_REDUCER_SHARE_GRADS : 0U) |
              (o.broadcast ? 0U : DIST_REDUCER_NO_BROADCAST);
    c.bucket_bytes = o.bucket_bytes;
    c.first_bucket_bytes = o.first_bucket_bytes;
    c.divide = static_cast<std::int32_t>(o.divide);
    c.missing = static_cast<std::int32_t>(o.missing);
    c.timeout_ms = o.timeout.ms();
    c.layout = o.layout.empty() ? nullptr : o.layout.data();
    c.layout_bytes = o.layout.size();
    c.name = detail::text_or_null(o.name);
    c.stream = o.stream;
    c.hook = detail::text_or_null(o.hook);
    c.hook_settings = detail::text_or_null(o.hook_settings);
    return c;
  }

  static std::chrono::nanoseconds nanoseconds(std::uint64_t count) noexcept {
    return std::chrono::nanoseconds(static_cast<std::int64_t>(count));
  }

  /// The element types of each parameter.
  std::vector<dist_dtype_t> value_types_;
  std::vector<dist_dtype_t> grad_types_;
  /// The number of elements of a row of each parameter.
  std::vector<std::size_t> row_sizes_;
  /// The functions of on_bucket, and the hook.
  std::vector<std::unique_ptr<detail::moved_in>> functions_;
};

DIST_HPP_END

#endif  // DIST_REDUCER_HPP
