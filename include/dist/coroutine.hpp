// Coroutines (C++20): `co_await dist::resume_on(executor, work)` suspends until the work is done.
#ifndef DIST_COROUTINE_HPP
#define DIST_COROUTINE_HPP

#include "work.hpp"

#if defined(__cpp_impl_coroutine) && __has_include(<coroutine>)
#include <coroutine>
#include <type_traits>
#include <utility>

DIST_HPP_BEGIN
namespace detail {

/// Suspends a coroutine until a work is done. The executor resumes it: the library's own thread must not, since calls
/// that block are refused there.
template <class Executor, class Work>
class work_awaiter {
 public:
  work_awaiter(Executor executor, Work &&awaited) : executor_(std::move(executor)), work_(std::forward<Work>(awaited)) {}
  work_awaiter(const work_awaiter &) = delete;
  work_awaiter &operator=(const work_awaiter &) = delete;
  ~work_awaiter() {
    // The coroutine is destroyed while it is suspended. If the callback is already running, the executor has or gets
    // a handle that is no longer valid: as for every awaiter, the program must not destroy the coroutine then.
    if (is_suspended_) work_.remove(id());
  }

  bool await_ready() const noexcept { return work_.done(); }

  /// Does not suspend if the callback cannot be registered; await_resume then waits.
  bool await_suspend(std::coroutine_handle<> coroutine) noexcept {
    coroutine_ = coroutine;
    is_suspended_ = true;
    if (dist_work_on_complete(work_.get(), resume, this) == DIST_OK) return true;
    is_suspended_ = false;
    return false;
  }

  auto await_resume() {
    is_suspended_ = false;
    if constexpr (is_base_work) {
      work_.wait();
    } else {
      return work_.take();
    }
  }

 private:
  static constexpr bool is_base_work = std::is_same_v<std::remove_cv_t<std::remove_reference_t<Work>>, work>;

  callback_id id() noexcept { return {resume, this, nullptr}; }

  static void resume(dist_status_t, const char *, void *user) noexcept {
    auto &self = *static_cast<work_awaiter *>(user);
    // Another thread may resume the coroutine, and destroy this object, before the executor returns.
    Executor executor = self.executor_;
    const std::coroutine_handle<> coroutine = self.coroutine_;
    executor(coroutine);
  }

  Executor executor_;
  Work work_;
  std::coroutine_handle<> coroutine_;
  bool is_suspended_ = false;
};

}  // namespace detail

/// Awaits a work: `co_await dist::resume_on(executor, w)`. `executor(std::coroutine_handle<>)` puts the handle into a
/// queue of the program, whose threads resume it; it is called on a thread of the library and must not block.
///
/// The result is that of take() if buffers were moved into the work, else nothing. A temporary work moves in.
template <class Executor, class Work>
[[nodiscard]] detail::work_awaiter<Executor, Work> resume_on(Executor executor, Work &&awaited) {
  return {std::move(executor), std::forward<Work>(awaited)};
}

DIST_HPP_END
#endif

#endif  // DIST_COROUTINE_HPP
