// The runtime: dist_init and dist_finalize as a scope, and processes without a launcher.
#ifndef DIST_RUNTIME_HPP
#define DIST_RUNTIME_HPP

#include "group.hpp"

#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

DIST_HPP_BEGIN

/// Options of a runtime. An empty text means the default.
struct init_options {
  std::string backend{};
  /// How the ranks meet: "env://" (the default), "tcp://host:port?rank=R&world_size=N" or "file:///path?...".
  std::string init_method{};
  /// The store in which the ranks meet, in place of init_method.
  const dist::store *store = nullptr;
  std::optional<int> rank{};
  /// The number of ranks; 0 to take it from init_method or the environment.
  int world_size = 0;
  /// The time-out of the world's operations.
  time_limit timeout{};
  time_limit connect_timeout{};
  std::string group_name{};
  std::string backend_options{};
  /// The index of this rank's GPU.
  std::optional<int> device{};
};

/// The version of the loaded library, such as "0.1.0".
inline const char *version() noexcept { return dist_version_string(); }

/// Whether there is a world.
inline bool is_initialized() noexcept { return dist_is_initialized() != 0; }
/// Whether an elastic launcher has started this process.
inline bool is_elastic_launched() noexcept { return dist_is_elastic_launched() != 0; }

namespace detail {

/// Until 1.0 a minor version may change the interface.
template <class E>
outcome<E, void> check_version() {
  const std::uint32_t loaded = dist_version();
  if (loaded / 100 == static_cast<std::uint32_t>(DIST_VERSION) / 100) return outcome<E, void>();
  const std::string header = std::to_string(DIST_VERSION_MAJOR) + "." + std::to_string(DIST_VERSION_MINOR);
  return fail<E, void>({make_error_code(errc::unsupported),
                        "dist.hpp is of version " + header + ", but the loaded library is " + dist_version_string() +
                            ": compile the program again, or put the library of version " + header + " first in the search path"});
}

}  // namespace detail

/// The world of this process: dist_init at the beginning of the scope, dist_finalize at its end.
class runtime {
 public:
#if DIST_HPP_HAS_EXCEPTIONS
  runtime() : runtime(init_options()) {}
  explicit runtime(const init_options &o) : runtime(init(o)) {}
#endif

  /// As the constructors. Failures are reported as by every other function.
  template <class E = detail::default_errors>
  [[nodiscard]] static detail::outcome<E, runtime> init(const init_options &o = {}, E = E{}) {
    if (auto fits = detail::check_version<nothrow_t>(); !fits) return detail::fail<E, runtime>(fits.error());
    dist_init_options_t c = DIST_INIT_OPTIONS_INIT;
    c.backend = detail::text_or_null(o.backend);
    c.init_method = detail::text_or_null(o.init_method);
    c.store = o.store == nullptr ? nullptr : o.store->get();
    if (o.rank) {
      c.fields |= DIST_FIELD_RANK;
      c.rank = *o.rank;
    }
    c.world_size = o.world_size;
    c.timeout_ms = o.timeout.ms();
    c.connect_timeout_ms = o.connect_timeout.ms();
    c.group_name = detail::text_or_null(o.group_name);
    c.backend_options = detail::text_or_null(o.backend_options);
    if (o.device) {
      c.fields |= DIST_FIELD_DEVICE;
      c.device = *o.device;
    }
    const dist_status_t status = dist_init(&c);
    return detail::finish<E>(status, runtime(status == DIST_OK));
  }

  runtime(runtime &&other) noexcept : owns_(std::exchange(other.owns_, false)) {}
  runtime &operator=(runtime &&) = delete;
  ~runtime() {
    if (owns_) static_cast<void>(dist_finalize() == DIST_OK);
  }

  group_ref world() const noexcept { return dist::world(); }

  /// Leaves the world before the end of the scope, and reports failures.
  template <class E = detail::default_errors>
  detail::outcome<E, void> finalize(E = E{}) {
    owns_ = false;
    return detail::finish<E>(dist_finalize());
  }

 private:
  explicit runtime(bool owns) noexcept : owns_(owns) {}

  bool owns_;
};

/// Options of spawn.
struct spawn_options {
  /// The time of all processes together; no limit by default.
  time_limit join_timeout{};
  /// From SIGTERM to SIGKILL; 2 seconds by default.
  time_limit grace{};
};

/// Runs a function in `n` forked processes, `f(rank)`, and waits for all: a job without a launcher.
///
/// A process fails with a result other than 0, a signal or an exception. The function may return void or int.
/// The call must be made before anything that starts threads (see dist_spawn).
template <class F, class E = detail::default_errors>
detail::outcome<E, void> spawn(int n, F function, const spawn_options &o = {}, E = E{}) {
  dist_spawn_options_t c = DIST_SPAWN_OPTIONS_INIT;
  c.join_timeout_ms = o.join_timeout.ms();
  c.grace_ms = o.grace.ms();
  // An exception other than dist::error ends the child in std::terminate, which prints its message.
  const dist_spawn_fn child = [](std::int32_t rank, void *arg) noexcept -> std::int32_t {
    F &body = *static_cast<F *>(arg);
    const auto run = [&]() -> std::int32_t {
      if constexpr (std::is_void_v<std::invoke_result_t<F &, int>>) {
        body(rank);
        return 0;
      } else {
        return static_cast<std::int32_t>(body(rank));
      }
    };
#if DIST_HPP_HAS_EXCEPTIONS
    try {
      return run();
    } catch (const error &) {
      return 1;  // the parent's error has the child's last error of the library
    }
#else
    return run();
#endif
  };
  return detail::finish<E>(dist_spawn(child, std::addressof(function), n, &c));
}

/// Stops completion callbacks, for a program that is about to end: true once none runs and none will be called.
template <class E = detail::default_errors>
detail::outcome<E, bool> stop_callbacks(time_limit limit = {}, E = E{}) {
  const dist_status_t status = dist_callbacks_stop(limit.ms());
  if (status == DIST_IN_PROGRESS) return false;
  return detail::finish<E>(status, true);
}

/// Allows completion callbacks again.
template <class E = detail::default_errors>
detail::outcome<E, void> start_callbacks(E = E{}) {
  return detail::finish<E>(dist_callbacks_start());
}

/// Whether a back end of this name can be used; loads it if necessary.
inline bool is_backend_available(const char *name) noexcept { return dist_backend_is_available(name) != 0; }

/// Loads a back end from a shared object.
template <class E = detail::default_errors>
detail::outcome<E, void> load_backend(const char *path, E = E{}) {
  return detail::finish<E>(dist_backend_load(path));
}

DIST_HPP_END

#endif  // DIST_RUNTIME_HPP
