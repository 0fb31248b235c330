// Options of calls, and time-outs as durations.
#ifndef DIST_OPTIONS_HPP
#define DIST_OPTIONS_HPP

#include "op.hpp"

#include <chrono>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>

DIST_HPP_BEGIN

/// How long a call may take: a duration, dist::forever, or by default what the operation or the object has.
///
/// A duration of zero or less is no time: the call looks once. Fractions of a millisecond are rounded up.
class time_limit {
 public:
  constexpr time_limit() noexcept = default;

  template <class Rep, class Period>
  constexpr time_limit(std::chrono::duration<Rep, Period> duration) noexcept : ms_(milliseconds(duration)) {}

  static constexpr time_limit never() noexcept {
    time_limit limit;
    limit.ms_ = DIST_WAIT_FOREVER;
    return limit;
  }

  /// The number of dist.h.
  constexpr std::int64_t ms() const noexcept { return ms_; }

 private:
  template <class Rep, class Period>
  static constexpr std::int64_t milliseconds(std::chrono::duration<Rep, Period> duration) noexcept {
    using exact = std::chrono::duration<double, std::milli>;
    constexpr double century = 100.0 * 366 * 24 * 3600 * 1000;
    if (duration <= duration.zero()) return DIST_NO_WAIT;
    if (std::chrono::duration_cast<exact>(duration).count() >= century) return DIST_WAIT_FOREVER;
    return std::chrono::ceil<std::chrono::duration<std::int64_t, std::milli>>(duration).count();
  }

  std::int64_t ms_ = 0;
};

/// No time limit.
inline constexpr time_limit forever = time_limit::never();

/// In place of the index of a GPU: the library finds out where the buffers are.
inline constexpr int any_device = std::numeric_limits<int>::min();

/// Options of one call. With C++20: `{.timeout = 5s, .label = "layer3"}`; before, chain the `with_` functions.
struct options {
  /// The time-out of the call; the default is the group's.
  time_limit timeout{};
  /// The name of an algorithm, the same on all ranks; nullptr: the library chooses.
  const char *algorithm = nullptr;
  /// A text of at most 32 bytes that all ranks compare, and that errors and traces show; nullptr for none.
  const char *label = nullptr;
  /// The same bits for every size of group, host and back end.
  bool canonical = false;
  /// Refuse NaN in the buffers that the call reads.
  bool check_nan = false;
  /// Refuse infinities in the buffers that the call reads.
  bool check_inf = false;
  /// Of a send: it completes once the receiver has begun to receive.
  bool synchronous = false;
  /// The stream of a call on GPU memory (cudaStream_t).
  void *stream = nullptr;
  /// The index of the GPU that has the buffers, or DIST_DEVICE_HOST.
  int device = any_device;

  options with_timeout(time_limit limit) const { return with(&options::timeout, limit); }
  options with_algorithm(const char *name) const { return with(&options::algorithm, name); }
  options with_label(const char *text) const { return with(&options::label, text); }
  options with_canonical() const { return with(&options::canonical, true); }
  options with_check_nan() const { return with(&options::check_nan, true); }
  options with_check_inf() const { return with(&options::check_inf, true); }
  options with_synchronous() const { return with(&options::synchronous, true); }
  options with_stream(void *s) const { return with(&options::stream, s); }
  options with_device(int index) const { return with(&options::device, index); }

 private:
  template <class T>
  options with(T options::*field, T value) const {
    options changed = *this;
    changed.*field = value;
    return changed;
  }
};

namespace detail {

/// An empty text means a default.
inline const char *text_or_null(const std::string &text) noexcept { return text.empty() ? nullptr : text.c_str(); }

inline bool is_default(const options &o) noexcept {
  return o.timeout.ms() == 0 && o.algorithm == nullptr && o.label == nullptr && !o.canonical && !o.check_nan &&
         !o.check_inf && !o.synchronous && o.stream == nullptr && o.device == any_device;
}

[[gnu::noinline]] inline dist_call_options_t c_options(const options &o) noexcept {
  dist_call_options_t c = DIST_CALL_OPTIONS_INIT;
  c.timeout_ms = o.timeout.ms();
  c.algorithm = o.algorithm;
  c.label = o.label;
  c.flags = (o.canonical ? DIST_CALL_CANONICAL : 0U) | (o.check_nan ? DIST_CALL_CHECK_NAN : 0U) |
            (o.check_inf ? DIST_CALL_CHECK_INF : 0U) | (o.synchronous ? DIST_CALL_SYNCHRONOUS : 0U);
  c.stream = o.stream;
  if (o.device != any_device) {
    c.flags |= DIST_CALL_DEVICE;
    c.device = o.device;
  }
  return c;
}

/// Calls a function with the options of dist.h, with NULL for all defaults: then the library's part of the call is shorter.
/// It is always inlined, so that options which the compiler knows cost nothing.
template <class F>
[[gnu::always_inline]] inline dist_status_t with_options(const options &o, F call) {
  if (is_default(o)) return call(nullptr);
  const dist_call_options_t c = c_options(o);
  return call(&c);
}

/// The same for a call that reduces.
template <class O, class F>
[[gnu::always_inline]] inline dist_status_t with_options(const options &o, const O &operation, F call) {
  if constexpr (std::is_same_v<O, op>) {
    if (operation.code == DIST_PREMUL_SUM) {
      dist_call_options_t c = c_options(o);
      c.premul_scale = operation.factor;
      return call(&c);
    }
  }
  return with_options(o, call);
}

}  // namespace detail

DIST_HPP_END

#endif  // DIST_OPTIONS_HPP
