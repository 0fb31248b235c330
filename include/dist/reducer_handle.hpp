// The calls that a reducer and its step share, and the functions of the caller that a reducer owns.
#ifndef DIST_REDUCER_HANDLE_HPP
#define DIST_REDUCER_HANDLE_HPP

#include "reducer_options.hpp"

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

DIST_HPP_BEGIN

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

DIST_HPP_END

#endif  // DIST_REDUCER_HANDLE_HPP
