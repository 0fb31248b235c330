// Logs, debug levels, the flight recorder and traces.
#ifndef DIST_DIAGNOSTICS_HPP
#define DIST_DIAGNOSTICS_HPP

#include "group.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

DIST_HPP_BEGIN

enum class log_level : std::int32_t {
  off = DIST_LOG_OFF,
  error = DIST_LOG_ERROR,
  warn = DIST_LOG_WARN,
  info = DIST_LOG_INFO,
  debug = DIST_LOG_DEBUG,
  trace = DIST_LOG_TRACE
};

enum class debug_level : std::int32_t { off = DIST_DEBUG_OFF, info = DIST_DEBUG_INFO, detail = DIST_DEBUG_DETAIL };

/// Sets which lines the library logs.
inline void set_log_level(log_level level) noexcept { dist_set_log_level(static_cast<std::int32_t>(level)); }

/// Sets which additional checks the library makes.
inline void set_debug_level(debug_level level) noexcept { dist_set_debug_level(static_cast<std::int32_t>(level)); }

/// Sets the debug level from DIST_DEBUG_LEVEL or TORCH_DISTRIBUTED_DEBUG.
template <class E = detail::default_errors>
detail::outcome<E, void> set_debug_level_from_env(E = E{}) {
  return detail::finish<E>(dist_set_debug_level_from_env());
}

template <class E = detail::default_errors>
[[nodiscard]] detail::outcome<E, debug_level> get_debug_level(E = E{}) {
  const std::int32_t level = dist_get_debug_level();
  if (level < 0) return detail::fail<E, debug_level>(detail::last_failure(DIST_ERR_INVALID_ARGUMENT));
  return static_cast<debug_level>(level);
}

/// Sends log lines to a function, `f(log_level, const char *line)`, until the end of the scope; then to standard error.
///
/// Any thread of the process may call the function, which must not call the library and must not throw.
template <class F>
class log_sink {
 public:
  explicit log_sink(F function) : function_(std::make_unique<F>(std::move(function))) {
    dist_set_log_callback(write, function_.get());
  }
  log_sink(log_sink &&) noexcept = default;
  log_sink &operator=(log_sink &&) = delete;
  ~log_sink() {
    // Returns once no call of the function is running.
    if (function_) dist_set_log_callback(nullptr, nullptr);
  }

 private:
  static void write(std::int32_t level, const char *line, void *user) noexcept {
    (*static_cast<F *>(user))(static_cast<log_level>(level), line);
  }

  std::unique_ptr<F> function_;
};

/// The last operations of this process as JSON, for dist-doctor.
template <class E = detail::default_errors>
[[nodiscard]] detail::outcome<E, std::string> flight_recorder(E = E{}) {
  blob json;
  const dist_status_t status = dist_flight_recorder_dump(nullptr, json.out());
  return detail::finish_text<E>(status, json);
}

/// The last operations of one group.
template <class E = detail::default_errors>
[[nodiscard]] detail::outcome<E, std::string> flight_recorder(group_ref group, E = E{}) {
  blob json;
  const dist_status_t status = dist_flight_recorder_dump(group.get(), json.out());
  return detail::finish_text<E>(status, json);
}

/// Writes a trace of this process's operations to a file until the end of the scope.
class trace {
 public:
#if DIST_HPP_HAS_EXCEPTIONS
  explicit trace(const std::string &path) : trace(start(path)) {}
#endif

  /// As the constructor. Failures are reported as by every other function.
  template <class E = detail::default_errors>
  [[nodiscard]] static detail::outcome<E, trace> start(const std::string &path, E = E{}) {
    const dist_status_t status = dist_trace_start(path.c_str());
    return detail::finish<E>(status, trace(status == DIST_OK));
  }

  trace(trace &&other) noexcept : runs_(std::exchange(other.runs_, false)) {}
  trace &operator=(trace &&) = delete;
  ~trace() {
    if (runs_) static_cast<void>(dist_trace_stop() == DIST_OK);
  }

  /// Completes the file before the end of the scope, and reports failures.
  template <class E = detail::default_errors>
  detail::outcome<E, void> stop(E = E{}) {
    runs_ = false;
    return detail::finish<E>(dist_trace_stop());
  }

 private:
  explicit trace(bool runs) noexcept : runs_(runs) {}

  bool runs_;
};

/// The calls of the calling thread's last failed call, if stacks are recorded (debug level detail).
inline std::string last_error_backtrace() { return dist_last_error_backtrace(); }

DIST_HPP_END

#endif  // DIST_DIAGNOSTICS_HPP
