// Errors: an std::error_code and a message, as an exception or as a result<T>.
#ifndef DIST_ERROR_HPP
#define DIST_ERROR_HPP

#include "config.hpp"

#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <stdexcept>
#include <string>
#include <system_error>
#include <type_traits>
#include <utility>
#include <variant>
#if __has_include(<version>)
#include <version>
#endif
#ifdef __cpp_lib_expected
#include <expected>
#endif

DIST_HPP_BEGIN

/// The statuses of dist.h as error codes: `e.code() == dist::errc::timeout`.
enum class errc : std::int32_t {
  ok = DIST_OK,
  in_progress = DIST_IN_PROGRESS,
  invalid_argument = DIST_ERR_INVALID_ARGUMENT,
  invalid_handle = DIST_ERR_INVALID_HANDLE,
  not_initialized = DIST_ERR_NOT_INITIALIZED,
  already_initialized = DIST_ERR_ALREADY_INITIALIZED,
  unsupported = DIST_ERR_UNSUPPORTED,
  not_found = DIST_ERR_NOT_FOUND,
  queue_empty = DIST_ERR_QUEUE_EMPTY,
  not_a_number = DIST_ERR_NOT_A_NUMBER,
  timeout = DIST_ERR_TIMEOUT,
  peer_failed = DIST_ERR_PEER_FAILED,
  mismatch = DIST_ERR_MISMATCH,
  aborted = DIST_ERR_ABORTED,
  connection = DIST_ERR_CONNECTION,
  auth = DIST_ERR_AUTH,
  deadlock = DIST_ERR_DEADLOCK,
  out_of_memory = DIST_ERR_OUT_OF_MEMORY,
  system = DIST_ERR_SYSTEM,
  backend = DIST_ERR_BACKEND,
  internal = DIST_ERR_INTERNAL
};

namespace detail {

class error_category final : public std::error_category {
 public:
  const char *name() const noexcept override { return "dist"; }
  std::string message(int status) const override { return dist_status_string(status); }

  /// For comparisons with std::errc, such as `code == std::errc::timed_out`.
  std::error_condition default_error_condition(int status) const noexcept override {
    switch (status) {
      case DIST_ERR_INVALID_ARGUMENT: return std::errc::invalid_argument;
      case DIST_ERR_UNSUPPORTED: return std::errc::operation_not_supported;
      case DIST_ERR_NOT_FOUND: return std::errc::no_such_file_or_directory;
      case DIST_ERR_TIMEOUT: return std::errc::timed_out;
      case DIST_ERR_ABORTED: return std::errc::operation_canceled;
      case DIST_ERR_CONNECTION: return std::errc::not_connected;
      case DIST_ERR_AUTH: return std::errc::permission_denied;
      case DIST_ERR_DEADLOCK: return std::errc::resource_deadlock_would_occur;
      case DIST_ERR_OUT_OF_MEMORY: return std::errc::not_enough_memory;
      default: return {status, *this};
    }
  }
};

}  // namespace detail

/// The category of all error codes of the library.
inline const std::error_category &category() noexcept {
  static const detail::error_category instance;
  return instance;
}

/// Found by ADL when an `errc` becomes a std::error_code.
inline std::error_code make_error_code(errc code) noexcept { return {static_cast<int>(code), category()}; }

DIST_HPP_END

template <>
struct std::is_error_code_enum<dist::errc> : std::true_type {};

DIST_HPP_BEGIN

/// A failed call: the status, and the library's message, which names ranks, hosts and what to do.
struct failure {
  std::error_code code;
  std::string message;

  /// Whether the group of the call has failed, so that its ranks must shrink it or end.
  bool fatal_to_group() const noexcept {
    return code.category() == category() && code.value() <= DIST_ERR_TIMEOUT && code.value() > DIST_ERR_OUT_OF_MEMORY;
  }
};

/// The exception of a failed call. what() is the library's whole message.
class error : public std::system_error {
 public:
  explicit error(const failure &failed) : std::system_error(failed.code), message_(failed.message) {}

  const char *what() const noexcept override { return message_.what(); }

  /// As failure::fatal_to_group.
  bool fatal_to_group() const noexcept { return failure{code(), {}}.fatal_to_group(); }

 private:
  // A standard exception copies its text without an allocation that may fail.
  std::runtime_error message_;
};

/// The value of a call that does not throw, or its failure. It is a subset of std::expected<T, failure>,
/// and with C++23 it converts to that type.
template <class T>
class [[nodiscard]] result {
  using stored = std::conditional_t<std::is_void_v<T>, std::monostate, T>;

 public:
  using value_type = T;
  using error_type = failure;

  template <class U = T, class = std::enable_if_t<std::is_void_v<U>>>
  result() {}
  template <class U = stored, class = std::enable_if_t<!std::is_void_v<T> && std::is_convertible_v<U, stored>>>
  result(U &&value) : state_(std::in_place_index<0>, std::forward<U>(value)) {}
  result(failure failed) : state_(std::in_place_index<1>, std::move(failed)) {}

  bool has_value() const noexcept { return state_.index() == 0; }
  explicit operator bool() const noexcept { return has_value(); }

  /// The value. Without one, throws dist::error, and terminates the program where exceptions are off.
  stored &value() & { return require(), std::get<0>(state_); }
  const stored &value() const & { return require(), std::get<0>(state_); }
  stored &&value() && { return require(), std::get<0>(std::move(state_)); }

  /// The value; there must be one.
  stored &operator*() & noexcept { return *std::get_if<0>(&state_); }
  const stored &operator*() const & noexcept { return *std::get_if<0>(&state_); }
  stored &&operator*() && noexcept { return std::move(*std::get_if<0>(&state_)); }
  stored *operator->() noexcept { return std::get_if<0>(&state_); }
  const stored *operator->() const noexcept { return std::get_if<0>(&state_); }

  /// The failure; there must be one.
  const failure &error() const noexcept { return *std::get_if<1>(&state_); }

  template <class U>
  T value_or(U &&other) && {
    return has_value() ? std::move(**this) : static_cast<T>(std::forward<U>(other));
  }

  /// Calls a function that returns a result with the value, or passes the failure on.
  template <class F>
  auto and_then(F &&function) && {
    if constexpr (std::is_void_v<T>) {
      using next = std::invoke_result_t<F>;
      return has_value() ? std::forward<F>(function)() : next(error());
    } else {
      using next = std::invoke_result_t<F, T &&>;
      return has_value() ? std::forward<F>(function)(std::move(**this)) : next(error());
    }
  }

#ifdef __cpp_lib_expected
  operator std::expected<T, failure>() && {
    if (!has_value()) return std::unexpected(error());
    if constexpr (std::is_void_v<T>) {
      return {};
    } else {
      return std::move(**this);
    }
  }
#endif

 private:
  void require() const {
    if (has_value()) return;
#if DIST_HPP_HAS_EXCEPTIONS
    throw dist::error(error());
#else
    std::terminate();
#endif
  }

  std::variant<stored, failure> state_;
};

/// The type of dist::nothrow.
struct nothrow_t {
  explicit nothrow_t() = default;
};

/// As the last argument of a call: it returns result<T> and throws no dist::error.
inline constexpr nothrow_t nothrow{};

namespace detail {

struct throwing_t {
  explicit throwing_t() = default;
};

#if DIST_HPP_HAS_EXCEPTIONS
using default_errors = throwing_t;
#else
using default_errors = nothrow_t;
#endif

template <class E>
inline constexpr bool is_nothrow = std::is_same_v<E, nothrow_t>;

/// What a call returns: T, or result<T> if failures are returned. No other last argument is accepted.
template <class E, class T>
using outcome = std::enable_if_t<is_nothrow<E> || std::is_same_v<E, throwing_t>, std::conditional_t<is_nothrow<E>, result<T>, T>>;

/// The failure of the last call of this thread.
inline failure last_failure(dist_status_t status) { return {std::error_code(status, category()), dist_last_error()}; }

/// A failure that the header finds itself, before the library is called.
inline failure refusal(std::string message) { return {make_error_code(errc::invalid_argument), std::move(message)}; }

/// Fails a call: throws, or returns the failure. It is not inlined, so that the calls themselves are.
template <class E, class T>
[[gnu::cold, gnu::noinline]] outcome<E, T> fail(failure failed) {
  static_assert(DIST_HPP_HAS_EXCEPTIONS || is_nothrow<E>, "without exceptions every call returns a result");
#if DIST_HPP_HAS_EXCEPTIONS
  if constexpr (!is_nothrow<E>) throw error(failed);
#endif
  if constexpr (is_nothrow<E>) return failed;
}

/// Fails a call with the failure of its last function of dist.h.
template <class E, class T>
[[gnu::cold, gnu::noinline]] outcome<E, T> fail_last(dist_status_t status) {
  return fail<E, T>(last_failure(status));
}

/// Ends a call that has only a status.
template <class E>
outcome<E, void> finish(dist_status_t status) {
  if (status != DIST_OK) return fail_last<E, void>(status);
  return outcome<E, void>();
}

/// Ends a call that has a value besides its status.
template <class E, class T>
outcome<E, T> finish(dist_status_t status, T value) {
  if (status != DIST_OK) return fail_last<E, T>(status);
  return outcome<E, T>(std::move(value));
}

/// Fails a call that the header refuses itself.
template <class E, class T>
[[gnu::cold]] outcome<E, T> refuse(std::string message) {
  return fail<E, T>(refusal(std::move(message)));
}

/// A text of a function that copies into a buffer and returns the size with the terminator. The text may grow
/// between the two calls.
template <class F>
std::string copied_text(F copy) {
  std::string text;
  for (std::size_t size = copy(nullptr, 0); size > text.size() + 1;) {
    text.resize(size - 1);
    size = copy(text.data(), size);
  }
  return text.substr(0, text.find('\0'));
}

}  // namespace detail

DIST_HPP_END

#endif  // DIST_ERROR_HPP
