// The parameters, options, votes and figures of a reducer, and the buckets that its functions get.
#ifndef DIST_REDUCER_OPTIONS_HPP
#define DIST_REDUCER_OPTIONS_HPP

#include "group.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
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

DIST_HPP_END

#endif  // DIST_REDUCER_OPTIONS_HPP
