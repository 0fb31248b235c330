// The reducer: gradients that are averaged over all ranks while the backward pass computes the next ones.
#ifndef DIST_REDUCER_HPP
#define DIST_REDUCER_HPP

#include "group.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

DIST_HPP_BEGIN

/// How a reducer treats a parameter.
enum class param_role : std::uint64_t {
  /// The parameter has a gradient, which is reduced.
  trained = 0,
  /// The parameter has no gradient.
  frozen = DIST_PARAM_FROZEN,
  /// State of a layer, such as a running mean. It has no gradient.
  buffer = DIST_PARAM_BUFFER
};

/// A parameter of a model. The reducer borrows the values and the gradient.
///
///     std::vector<float> weights(1000), own_gradient(1000);
///     dist::param("w", weights);                       // the reducer provides the gradient: reducer::grad
///     dist::param("w", weights, own_gradient);         // the gradient is memory of the caller
///     dist::param("mean", mean).with_role(dist::param_role::buffer);
class param {
 public:
  /// A parameter whose gradient is memory of the reducer. The values are a buffer, for example dist::view(pointer, size).
  template <class R>
  param(std::string name, R &&values) : name_(std::move(name)) {
    const auto elements = borrowed<R>(values);
    using T = detail::value_of<R>;
    c_.data = elements.data;
    c_.count = elements.size;
    c_.dtype = dtype_v<T>;
    c_.grad_dtype = dtype_v<T>;
  }

  /// A parameter whose gradient is memory of the caller, of the same number of elements.
  template <class R, class G>
  param(std::string name, R &&values, G &&gradient) : param(std::move(name), std::forward<R>(values)) {
    const auto elements = borrowed<G>(gradient);
    c_.grad = elements.data;
    c_.grad_dtype = dtype_v<detail::value_of<G>>;
    grad_size_ = elements.size;
  }

  /// The extent of each dimension. All ranks compare it, and errors show it.
  param with_shape(std::vector<std::int64_t> extents) const {
    param changed = *this;
    changed.shape_ = std::move(extents);
    return changed;
  }
  param with_role(param_role role) const { return with(&dist_param_t::flags, static_cast<std::uint64_t>(role)); }
  /// The gradient consists of some rows, as that of an embedding: step::ready_rows. The first extent of the shape is the number
  /// of rows.
  param with_sparse_rows(std::vector<std::int64_t> extents) const {
    return with_shape(std::move(extents)).with(&dist_param_t::flags, std::uint64_t{DIST_PARAM_SPARSE_ROWS});
  }
  /// Parameters of different tags never share a bucket.
  param with_tag(std::uint64_t tag) const { return with(&dist_param_t::tag, tag); }
  /// The element type of the gradient in memory of the reducer; by default that of the values.
  template <class T>
  param with_grad_type() const {
    static_assert(is_reducible_v<T>, "no element type of the library: specialise dist::dtype_of for it");
    return with(&dist_param_t::grad_dtype, dtype_v<T>);
  }
  /// The index of the device whose memory has the values and the gradient.
  param with_device(int index) const {
    param changed = with(&dist_param_t::device, static_cast<std::int32_t>(index));
    changed.c_.fields |= DIST_FIELD_DEVICE;
    return changed;
  }

  const std::string &name() const noexcept { return name_; }

  /// The description of dist.h, valid as long as this object.
  dist_param_t get() const noexcept {
    dist_param_t c = c_;
    c.name = name_.c_str();
    c.shape = shape_.empty() ? nullptr : shape_.data();
    c.n_shape = shape_.size();
    return c;
  }

  /// Whether the gradient of the caller has as many elements as the values.
  bool has_fitting_grad() const noexcept { return c_.grad == nullptr || grad_size_ == c_.count; }

 private:
  template <class R>
  static auto borrowed(std::remove_reference_t<R> &object) {
    static_assert(!detail::is_moved_in<R>, "the reducer borrows the memory of a parameter: pass an lvalue or a view");
    static_assert(is_reducible_v<detail::value_of<R>>, "no element type of the library: specialise dist::dtype_of for it");
    return detail::target(object);
  }

  template <class T>
  param with(T dist_param_t::*field, T value) const {
    param changed = *this;
    changed.c_.*field = value;
    return changed;
  }

  std::string name_;
  std::vector<std::int64_t> shape_;
  dist_param_t c_ = DIST_PARAM_INIT;
  std::size_t grad_size_ = 0;
};

/// The divisor of the sum of all ranks' gradients.
enum class divide : std::int32_t {
  /// The number of ranks that have data.
  world = DIST_DIVIDE_WORLD,
  /// The sum is not divided.
  none = DIST_DIVIDE_NONE,
  /// The number of ranks with which the reducer was created.
  initial = DIST_DIVIDE_INITIAL,
  /// Each gradient is multiplied by the weight of its step, and the sum is divided by the weights of all ranks.
  weighted = DIST_DIVIDE_WEIGHTED
};

/// The effect of a parameter that a rank did not mark.
enum class missing : std::int32_t {
  /// The step fails on all ranks.
  error = DIST_MISSING_ERROR,
  /// The rank contributes zeros and gets the result.
  zero = DIST_MISSING_ZERO,
  /// As zero, but a parameter that no rank marked keeps its gradient.
  skip = DIST_MISSING_SKIP
};

/// A bucket whose gradients are reduced. It is valid during the function of reducer::on_bucket.
struct bucket {
  /// The position of the bucket, and the number of buckets.
  std::size_t index;
  std::size_t buckets;
  /// The number of the step, from 0.
  std::uint64_t step;
  /// The indices of the parameters.
  buffer<const std::size_t> params;
  /// The offset of each gradient in `data`, in elements; empty if `data` is null.
  buffer<const std::size_t> offsets;
  /// The reduced gradients, with gaps between them; null if they are the caller's own.
  void *data;
  /// The number of elements of `data`, gaps included.
  std::size_t count;
  dist_dtype_t dtype;
};

/// A bucket that a hook reduces. It is valid during the call of the hook.
///
/// `data` has this rank's gradients, multiplied by this rank's factor. It is never null. The hook replaces the gradients by
/// their sums over all ranks.
struct hooked_bucket : bucket {
  /// The bytes that this rank sends for the bucket: at first the bytes of `data`. A hook that sends another number stores it
  /// here. reducer_stats::bytes_saved is computed from it.
  std::uint64_t bytes_sent;

  /// The elements of `data`, gaps included. Another element type than that of the gradients is errc::invalid_argument.
  template <class T, class E = detail::default_errors>
  [[nodiscard]] detail::outcome<E, buffer<T>> elements(E = E{}) const {
    static_assert(is_reducible_v<T>, "no element type of the library: specialise dist::dtype_of for it");
    if (dtype != dtype_v<T>) {
      return detail::refuse<E, buffer<T>>(std::string("dist::hooked_bucket: the gradients have elements of ") +
                                          name_of_dtype(dtype) + ", not of " + name_of_dtype(dtype_v<T>));
    }
    return buffer<T>{static_cast<T *>(data), count};
  }
};

/// A function that reduces buckets: `f(dist::group_ref, dist::hooked_bucket &)`.
///
///     options.hook = "sum";
///     options.hook_function = [](dist::group_ref group, dist::hooked_bucket &bucket) {
///       const auto gradients = bucket.elements<float>();
///       group.all_reduce(gradients, dist::sum);
///     };
///
/// The group has the ranks of the reducer's group, and is valid during the call. The function may block, may use any operation
/// of the group, and must leave the same bits on all ranks. It must not call functions of the reducer. The library calls it with
/// one bucket after the other, in the same order on all ranks, on the thread that ends the step or on a thread of the library.
///
/// The function returns nothing or a result<void>. It reports a failure as an exception or as a failed result. The failure fails
/// the group, so that the step fails on all ranks. On this rank the step has the status of the failure and its text:
///
///   dist::error, a result, and any std::system_error with a dist::errc    the status itself
///   std::bad_alloc                                                        errc::out_of_memory
///   everything else                                                       errc::system
class hook_function {
 public:
  hook_function() noexcept = default;
  template <class F, class R = std::invoke_result_t<F &, group_ref, hooked_bucket &>,
            class = std::enable_if_t<!std::is_same_v<std::decay_t<F>, hook_function>>>
  hook_function(F function) {
    static_assert(std::is_void_v<R> || std::is_same_v<R, result<void>>, "a hook returns nothing or a dist::result<void>");
    call_ = [own = std::move(function)](group_ref group, hooked_bucket &bucket) mutable -> result<void> {
      if constexpr (std::is_void_v<R>) {
        own(group, bucket);
        return {};
      } else {
        return own(group, bucket);
      }
    };
  }

  /// Whether there is a function.
  explicit operator bool() const noexcept { return static_cast<bool>(call_); }

  /// Calls the function. There must be one.
  result<void> operator()(group_ref group, hooked_bucket &bucket) { return call_(group, bucket); }

 private:
  std::function<result<void>(group_ref, hooked_bucket &)> call_;
};

/// Options of a reducer: the same on all ranks, except `name`, `timeout` and `layout`.
struct reducer_options {
  /// The name of the model in the log.
  std::string name{};
  /// The size of a bucket; 0 for a size that suits the transport.
  std::size_t bucket_bytes = 0;
  /// The size of the first bucket; 0 for the smaller of `bucket_bytes` and 1 MiB.
  std::size_t first_bucket_bytes = 0;
  dist::divide divide = dist::divide::world;
  dist::missing missing = dist::missing::error;
  /// The time-out of each operation; the default is the group's.
  time_limit timeout{};
  /// The text of reducer::layout, from this job or another one.
  std::string layout{};
  /// The CUDA stream in which gradients on a device are computed; null for the device's default stream.
  void *stream = nullptr;
  /// How buckets in host memory are reduced: "all_reduce" or ""; "f16", "bf16", "int8" or "powersgd", which send fewer bytes;
  /// "none", which sends nothing, so that each rank keeps its own gradients. With `hook_function`, the name of that function.
  std::string hook{};
  /// Settings of the hook, such as "rank=2;start=100": see dist_reducer_options_t. Those of `hook_function` are its own.
  std::string hook_settings{};
  /// A function that reduces buckets. The reducer keeps a copy as long as it lives.
  dist::hook_function hook_function{};
  /// Results do not overwrite gradients, so that a step can be repeated after a failure.
  bool retryable = false;
  /// Gradients are added in the order of ranks, so that the result does not depend on the hosts of the ranks.
  bool canonical = false;
  /// The buckets stay as they are in the first step.
  bool fixed_layout = false;
  /// Gradients in memory of the reducer may move at the end of the first step.
  bool move_grads = false;
  /// All steps use the same parameters, and mark each of them equally often.
  bool static_graph = false;
  /// Each step that communicates begins with a broadcast of the buffers.
  bool broadcast_buffers = false;
  /// Ranks may run out of data at different steps: reducer::join.
  bool uneven = false;
  /// A rank gets the results of its own elements only, for a dist::shard. Not with `retryable`, hooks and sparse rows.
  bool sharded = false;
  /// With `sharded`: gradients in memory of the reducer have memory only inside a step. The caller calls reducer::grad in each
  /// step before it computes the gradient.
  bool share_grads = false;
  /// The ranks get the values of rank 0 when the reducer is created.
  bool broadcast = true;
};

/// The verdict of a rank on a step, or of all ranks together. Values from 256 on are the caller's.
enum class vote : std::uint64_t {
  /// The rank agrees with the step.
  commit = DIST_VOTE_COMMIT,
  /// A gradient of the rank is infinite or NaN.
  non_finite = DIST_VOTE_NON_FINITE,
  /// The rank leaves the step out.
  skip = DIST_VOTE_SKIP,
  /// The rank could not compute its gradients.
  error = DIST_VOTE_ERROR
};

constexpr vote operator|(vote a, vote b) noexcept {
  return static_cast<vote>(static_cast<std::uint64_t>(a) | static_cast<std::uint64_t>(b));
}

/// Whether the votes of all ranks include a verdict.
constexpr bool has_vote(vote all, vote verdict) noexcept {
  return (static_cast<std::uint64_t>(all) & static_cast<std::uint64_t>(verdict)) != 0;
}

/// The values that reducer::broadcast and reducer::check use.
enum class model_part : std::uint64_t {
  params = DIST_REDUCER_PARAMS,
  buffers = DIST_REDUCER_BUFFERS,
  /// The reduced gradients, for reducer::check alone.
  grads = DIST_REDUCER_GRADS
};

constexpr model_part operator|(model_part a, model_part b) noexcept {
  return static_cast<model_part>(static_cast<std::uint64_t>(a) | static_cast<std::uint64_t>(b));
}

/// Figures of a reducer.
struct reducer_stats {
  /// The number of steps with communication that have ended.
  std::uint64_t steps;
  /// Of the last step: the number of buckets, and the bytes that were reduced.
  std::uint64_t buckets;
  std::uint64_t bytes_reduced;
  /// Of the last step: the number of these bytes that a hook did not have to send.
  std::uint64_t bytes_saved;
  /// Of the last step: the bytes that were copied.
  std::uint64_t bytes_copied;
  /// Of the last step: the time from the first mark to the last one.
  std::chrono::nanoseconds first_ready_to_last_ready;
  /// Of the last step: the time of its operations, the time that the end waited, and the time of the whole step.
  std::chrono::nanoseconds communication;
  std::chrono::nanoseconds exposed;
  std::chrono::nanoseconds step;
  /// How often the layout changed.
  std::uint64_t rebuilds;
  /// How often a step was repeated, or its end taken from another rank.
  std::uint64_t retries;
};

/// The reduced rows of a sparse gradient.
template <class T>
struct sparse_rows {
  /// The indices, in ascending order.
  buffer<const std::int64_t> rows;
  /// The rows, one after the other.
  buffer<T> values;
};

namespace detail {

inline bucket bucket_of(const dist_bucket_t &c) noexcept {
  const std::size_t offsets = c.offsets == nullptr ? 0 : c.n_params;
  return {c.index, c.n_buckets, c.step, {c.params, c.n_params}, {c.offsets, offsets}, c.data, c.count, c.dtype};
}

/// The text of the last failure of a hook, for the error of its step.
struct hook_failure {
  void set(const char *text) noexcept {
    const std::lock_guard<std::mutex> lock(mutex_);
#if DIST_HPP_HAS_EXCEPTIONS
    try {
      text_ = text;
    } catch (...) {
      text_.clear();
    }
#else
    text_ = text;
#endif
  }

  std::string take() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return std::exchange(text_, {});
  }

 private:
  std::mutex mutex_;
  std::string text_;
};

/// Fails a call of a reducer with the failure of its last function of dist.h, and with the text of the hook's failure if there
/// is one. `hook` may be null.
template <class E, class T>
[[gnu::cold, gnu::noinline]] outcome<E, T> fail_step(dist_status_t status, const std::shared_ptr<hook_failure> &hook) {
  failure failed = last_failure(status);
  if (const std::string text = hook == nullptr ? std::string() : hook->take(); !text.empty()) {
    failed.message += "; the failure of the hook: " + text;
  }
  return fail<E, T>(std::move(failed));
}

/// A hook of the caller, which lives as long as the reducer.
struct hook_owner final : moved_in {
  explicit hook_owner(const hook_function &function) : function_(function) {}

  const std::shared_ptr<hook_failure> &failure() const noexcept { return failure_; }

  static dist_status_t call(dist_group_t *group, const dist_bucket_t *c, std::uint64_t *bytes_sent, void *user) noexcept {
    hook_owner &own = *static_cast<hook_owner *>(user);
    hooked_bucket bucket{bucket_of(*c), *bytes_sent};
    const dist_status_t status = own.guarded_call(group_ref(group), bucket);
    *bytes_sent = bucket.bytes_sent;
    return status;
  }

 private:
  /// An exception becomes a status.
  dist_status_t guarded_call(group_ref group, hooked_bucket &bucket) noexcept {
#if DIST_HPP_HAS_EXCEPTIONS
    try {
      return unguarded_call(group, bucket);
    } catch (const std::system_error &failed) {
      return refuse(status_of(failed.code()), failed.what());
    } catch (const std::bad_alloc &failed) {
      return refuse(DIST_ERR_OUT_OF_MEMORY, failed.what());
    } catch (const std::exception &failed) {
      return refuse(DIST_ERR_SYSTEM, failed.what());
    } catch (...) {
      return refuse(DIST_ERR_SYSTEM, "an exception that is not a std::exception");
    }
#else
    return unguarded_call(group, bucket);
#endif
  }

  dist_status_t unguarded_call(group_ref group, hooked_bucket &bucket) {
    const result<void> done = function_(group, bucket);
    if (!done) return refuse(status_of(done.error().code), done.error().message.c_str());
    // The text of an earlier failure does not belong to later steps.
    failure_->set("");
    return DIST_OK;
  }

  dist_status_t refuse(dist_status_t status, const char *text) noexcept {
    failure_->set(text);
    return status;
  }

  static dist_status_t status_of(const std::error_code &code) noexcept {
    return code.category() == category() && code.value() < 0 ? code.value() : DIST_ERR_SYSTEM;
  }

  hook_function function_;
  std::shared_ptr<hook_failure> failure_ = std::make_shared<hook_failure>();
};

/// What the end of a step writes to, and the hook whose failure may have ended it.
struct step_end final : moved_in {
  explicit step_end(std::shared_ptr<hook_failure> failure) noexcept : hook(std::move(failure)) {}

  std::uint64_t votes = 0;
  std::shared_ptr<hook_failure> hook;
};

}  // namespace detail

/// The end of a step that goes on. take() waits, and returns the votes of all ranks.
class [[nodiscard]] step_work : public work {
 public:
  step_work() noexcept = default;
  step_work(std::unique_ptr<detail::step_end> end, dist_work_t *handle) noexcept : work(handle, std::move(end)) {}

  template <class E = detail::default_errors>
  [[nodiscard]] detail::outcome<E, vote> take(E = E{}) {
    const auto *end = static_cast<const detail::step_end *>(memory());
    const dist_status_t status = dist_work_wait(get(), 0);
    if (status != DIST_OK) return detail::fail_step<E, vote>(status, end == nullptr ? nullptr : end->hook);
    return static_cast<vote>(end->votes);
  }
};

namespace detail {

/// The calls of a step, which reducer and step share.
class reducer_handle {
 public:
  /// Marks a gradient that is complete. Its bucket is reduced once all gradients of the bucket are marked.
  template <class E = default_errors>
  outcome<E, void> ready(std::size_t param, E = E{}) {
    return finish<E>(dist_reducer_ready(handle_, param));
  }
  template <class E = default_errors>
  outcome<E, void> ready(std::initializer_list<std::size_t> params, E = E{}) {
    return finish<E>(dist_reducer_ready_many(handle_, params.begin(), params.size()));
  }
  template <class E = default_errors>
  outcome<E, void> ready(const std::vector<std::size_t> &params, E = E{}) {
    return finish<E>(dist_reducer_ready_many(handle_, params.data(), params.size()));
  }

  /// Marks a sparse gradient, with the indices of its rows (std::int64_t) and the rows themselves, one after the other. Both are
  /// vectors or other containers with data() and size(), and stay as they are until the step has ended. Rows that come several
  /// times are added.
  template <class R, class V, class E = default_errors>
  outcome<E, void> ready_rows(std::size_t param, R &&rows, V &&values, E = E{}) {
    static_assert(std::is_lvalue_reference_v<R> && std::is_lvalue_reference_v<V>,
                  "the step borrows rows and values until it has ended: pass lvalues");
    static_assert(std::is_same_v<std::decay_t<decltype(rows[0])>, std::int64_t>, "the indices of rows are std::int64_t");
    static_assert(is_reducible_v<std::decay_t<decltype(values[0])>>,
                  "no element type of the library: specialise dist::dtype_of for it");
    return finish<E>(dist_reducer_ready_rows(handle_, param, rows.data(), values.data(), rows.size()));
  }

  /// Marks a parameter that this rank does not use in the step.
  template <class E = default_errors>
  outcome<E, void> unused(std::size_t param, E = E{}) {
    return finish<E>(dist_reducer_unused(handle_, param));
  }

  dist_reducer_t *get() const noexcept { return handle_; }

 protected:
  explicit reducer_handle(dist_reducer_t *handle, std::shared_ptr<hook_failure> hook = nullptr) noexcept
      : handle_(handle), hook_(std::move(hook)) {}

  /// Ends the step of a handle, which may no longer be that of this object.
  template <class E>
  outcome<E, vote> end_of(dist_reducer_t *handle, vote own) const {
    std::uint64_t all = 0;
    const dist_status_t status = dist_reducer_end(handle, static_cast<std::uint64_t>(own), &all, nullptr);
    if (status != DIST_OK) return fail_step<E, vote>(status, hook_);
    return static_cast<vote>(all);
  }

  template <class E>
  outcome<E, step_work> end_of_async(dist_reducer_t *handle, vote own) const {
    auto end = std::make_unique<step_end>(hook_);
    dist_work_t *made = nullptr;
    const dist_status_t status = dist_reducer_end(handle, static_cast<std::uint64_t>(own), &end->votes, &made);
    if (status != DIST_OK) return fail_step<E, step_work>(status, hook_);
    return step_work(std::move(end), made);
  }

  dist_reducer_t *handle_;
  /// The failures of the caller's hook; null without one.
  std::shared_ptr<hook_failure> hook_;
};

/// A function of the caller for buckets.
template <class F>
struct bucket_function final : moved_in {
  explicit bucket_function(F &&f) : function(std::move(f)) {}

  static void call(const dist_bucket_t *c, void *user) noexcept {
    static_cast<bucket_function *>(user)->function(bucket_of(*c));
  }

  F function;
};

}  // namespace detail

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
