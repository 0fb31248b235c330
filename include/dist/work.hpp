// Works: operations on their way. A work waits when it is destroyed, so that no buffer is freed too early.
#ifndef DIST_WORK_HPP
#define DIST_WORK_HPP

#include "blob.hpp"
#include "options.hpp"

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

DIST_HPP_BEGIN

/// What kind of failure an error names.
enum class fault : std::int32_t {
  none = DIST_CULPRIT_NONE,
  died = DIST_CULPRIT_DIED,
  left = DIST_CULPRIT_LEFT,
  unreachable = DIST_CULPRIT_UNREACHABLE,
  stopped = DIST_CULPRIT_STOPPED,
  late = DIST_CULPRIT_LATE,
  mismatch = DIST_CULPRIT_MISMATCH,
  aborted = DIST_CULPRIT_ABORTED,
  failed = DIST_CULPRIT_FAILED
};

/// The rank that an error names.
struct culprit {
  /// The rank in the group of the failed operation.
  int rank;
  fault kind;
  /// The process on its host; 0 if it is not known.
  std::int64_t pid;
  /// The name of its host; "" if it is not known.
  std::string host;
};

/// A callback of work::on_complete, for work::remove.
struct callback_id {
  dist_work_fn function = nullptr;
  void *user = nullptr;
  void (*release)(void *user) = nullptr;
};

namespace detail {

template <class F>
std::optional<culprit> read_culprit(F read) {
  dist_culprit_t c = DIST_CULPRIT_INIT;
  if (read(&c) != DIST_OK || c.kind == DIST_CULPRIT_NONE) return std::nullopt;
  return culprit{c.rank, static_cast<fault>(c.kind), c.pid, c.host};
}

/// Memory that was moved into a work, whatever its type.
struct moved_in {
  moved_in() = default;
  moved_in(const moved_in &) = delete;
  moved_in &operator=(const moved_in &) = delete;
  virtual ~moved_in() = default;
};

/// The works that were destroyed inside of a batch of this thread, with their buffers. They end with the batch.
struct batch_remains final : moved_in {
  ~batch_remains() override {
    for (dist_work_t *each : works) {
      static_cast<void>(dist_work_wait(each, DIST_WAIT_FOREVER) == DIST_OK);
      dist_work_release(each);
    }
  }

  void take(dist_work_t *work, std::unique_ptr<moved_in> buffers) {
    works.push_back(work);
    memory.push_back(std::move(buffers));
  }

  std::vector<dist_work_t *> works;
  std::vector<std::unique_ptr<moved_in>> memory;
};

/// The batch that this thread has open.
inline thread_local batch_remains *open_batch = nullptr;

}  // namespace detail

/// An operation on its way. The destructor waits until the library no longer uses the buffers of the operation.
///
/// Errors of the operation are reported by wait(), not by the destructor. A work that is destroyed inside of a batch
/// is left to the batch. A work must not be destroyed in a completion callback before it is done, since a callback
/// cannot wait: std::terminate is called.
class work {
 public:
  work() noexcept = default;
  explicit work(dist_work_t *handle, std::unique_ptr<detail::moved_in> memory = nullptr) noexcept
      : handle_(handle), memory_(std::move(memory)) {}
  work(work &&other) noexcept : handle_(std::exchange(other.handle_, nullptr)), memory_(std::move(other.memory_)) {}
  work &operator=(work &&other) noexcept {
    if (this != &other) {
      finish();
      handle_ = std::exchange(other.handle_, nullptr);
      memory_ = std::move(other.memory_);
    }
    return *this;
  }
  ~work() { finish(); }

  /// Whether the object has a work: not after a move, detach() or default construction.
  explicit operator bool() const noexcept { return handle_ != nullptr; }

  /// Waits until the work is done, until the deadline of the operation at the latest.
  template <class E = detail::default_errors>
  detail::outcome<E, void> wait(E = E{}) {
    return detail::finish<E>(dist_work_wait(handle_, 0));
  }

  /// Waits for a time: true if the work is done. After false the buffers stay lent.
  template <class E = detail::default_errors>
  detail::outcome<E, bool> wait_for(time_limit limit, E = E{}) {
    const dist_status_t status = dist_work_wait(handle_, limit.ms());
    if (status == DIST_IN_PROGRESS) return false;
    return detail::finish<E>(status, true);
  }

  /// Waits for one slice of a longer wait: true if the work is done. `left` is the rest of the whole wait. The search for
  /// deadlocks regards repeated calls as one wait.
  template <class E = detail::default_errors>
  detail::outcome<E, bool> wait_slice(time_limit slice = {}, time_limit left = {}, E = E{}) {
    const dist_status_t status = dist_work_wait_slice(handle_, left.ms(), slice.ms());
    if (status == DIST_IN_PROGRESS) return false;
    return detail::finish<E>(status, true);
  }

  /// Waits until the work is done, and until the GPU has finished with the buffers.
  template <class E = detail::default_errors>
  detail::outcome<E, void> synchronize(E = E{}) {
    return detail::finish<E>(dist_work_synchronize(handle_, 0));
  }

  /// Whether the work has ended, with success or with an error. Does not wait.
  bool done() const noexcept { return is_done(handle_); }

  /// The message of the operation's error; "" while it is pending and if it has succeeded.
  std::string error_message() const {
    return detail::copied_text([this](char *text, std::size_t size) { return dist_work_error(handle_, text, size); });
  }

  /// The rank that the operation's error names.
  std::optional<dist::culprit> culprit() const {
    return detail::read_culprit([this](dist_culprit_t *out) { return dist_work_culprit(handle_, out); });
  }

  /// The sequence number of the operation in its group.
  std::uint64_t sequence() const noexcept { return dist_work_sequence(handle_); }
  /// When the operation was issued, by CLOCK_MONOTONIC.
  std::chrono::nanoseconds started() const noexcept { return nanoseconds(dist_work_start_ns(handle_)); }
  /// How long the operation took.
  std::chrono::nanoseconds elapsed() const noexcept { return nanoseconds(dist_work_elapsed_ns(handle_)); }

  /// Of a message: its sender, its tag, and its number of elements of the library (bytes for other types).
  int source() const noexcept { return dist_work_source(handle_); }
  int tag() const noexcept { return dist_work_tag(handle_); }
  std::size_t received_count() const noexcept { return dist_work_received_count(handle_); }

  /// Calls a function once the work is done: `f(std::error_code code, const char *message)`.
  ///
  /// It runs on a thread of the library. It must not throw, and must not call what blocks. The work may be destroyed
  /// before. The returned value is for remove().
  template <class F, class E = detail::default_errors>
  detail::outcome<E, callback_id> on_complete(F function, E = E{}) {
    auto owned = std::make_unique<F>(std::move(function));
    const callback_id id{[](dist_status_t status, const char *message, void *user) noexcept {
                           const std::unique_ptr<F> called(static_cast<F *>(user));
                           (*called)(std::error_code(status, category()), message);
                         },
                         owned.get(), [](void *user) { delete static_cast<F *>(user); }};
    const dist_status_t status = dist_work_on_complete(handle_, id.function, id.user);
    if (status == DIST_OK) static_cast<void>(owned.release());
    return detail::finish<E>(status, callback_id(id));
  }

  /// Withdraws a function of on_complete: true if it had not been called, and is not called any more.
  bool remove(const callback_id &id) noexcept {
    if (dist_work_remove_callback(handle_, id.function, id.user) != DIST_OK) return false;
    if (id.release != nullptr) id.release(id.user);
    return true;
  }

  /// Gives the work up without waiting for it. Lent buffers must outlive the operation; those that were moved in do.
  void detach() noexcept {
    if (memory_) {
      const auto release = [](dist_status_t, const char *, void *user) noexcept {
        delete static_cast<detail::moved_in *>(user);
      };
      // Without a callback that frees the memory, the work has to be waited for.
      if (dist_work_on_complete(handle_, release, memory_.get()) != DIST_OK) return finish();
      static_cast<void>(memory_.release());
    }
    dist_work_release(std::exchange(handle_, nullptr));
  }

  dist_work_t *get() const noexcept { return handle_; }

 protected:
  detail::moved_in *memory() const noexcept { return memory_.get(); }

 private:
  /// Waits, releases the work, and frees the memory that was moved in.
  void finish() noexcept {
    dist_work_t *handle = std::exchange(handle_, nullptr);
    auto memory = std::move(memory_);
    if (handle == nullptr) return;
    static_cast<void>(dist_work_wait(handle, DIST_WAIT_FOREVER) == DIST_OK);
    if (is_done(handle)) {
      dist_work_release(handle);
      return;
    }
    // The wait was refused: the work belongs to a batch that has not ended, or this is a completion callback.
    if (detail::open_batch == nullptr) std::terminate();
    detail::open_batch->take(handle, std::move(memory));
  }

  static bool is_done(dist_work_t *handle) noexcept {
    std::int32_t done = 0;
    const dist_status_t status = dist_work_test(handle, &done);
    return done != 0 || status == DIST_ERR_INVALID_HANDLE;
  }

  static std::chrono::nanoseconds nanoseconds(std::uint64_t count) noexcept {
    return std::chrono::nanoseconds(static_cast<std::int64_t>(count));
  }

  dist_work_t *handle_ = nullptr;
  std::unique_ptr<detail::moved_in> memory_;
};

namespace detail {

/// Buffers that were moved into a work. Their addresses do not change.
template <class... B>
struct owned_buffers final : moved_in {
  explicit owned_buffers(B &&...b) : buffers(std::move(b)...) {}
  std::tuple<B...> buffers;
};

}  // namespace detail

/// A work with the buffers that were moved into it. take() waits and returns them. As a plain work it keeps them, too.
template <class... B>
class [[nodiscard]] owning_work : public work {
 public:
  /// One buffer as itself, several as a std::tuple.
  using value_type = std::conditional_t<sizeof...(B) == 1, std::tuple_element_t<0, std::tuple<B...>>, std::tuple<B...>>;

  owning_work() noexcept = default;
  owning_work(std::unique_ptr<detail::owned_buffers<B...>> owned, dist_work_t *handle) noexcept
      : work(handle, std::move(owned)) {}

  /// Waits, and returns the buffers. After an error of the operation their contents are undefined; reclaim() returns them.
  template <class E = detail::default_errors>
  detail::outcome<E, value_type> take(E = E{}) {
    const dist_status_t status = dist_work_wait(get(), 0);
    if (status != DIST_OK) return detail::fail<E, value_type>(detail::last_failure(status));
    return reclaim();
  }

  /// Waits, and returns the buffers whatever became of the operation.
  value_type reclaim() noexcept {
    static_cast<void>(dist_work_wait(get(), DIST_WAIT_FOREVER) == DIST_OK);
    if (!done()) std::terminate();
    auto &buffers = static_cast<detail::owned_buffers<B...> *>(memory())->buffers;
    if constexpr (sizeof...(B) == 1) {
      return std::move(std::get<0>(buffers));
    } else {
      return std::move(buffers);
    }
  }
};

namespace detail {

/// Whether the sizes of two buffers fit together.
struct size_check {
  const char *call = "";
  std::size_t have = 0;
  std::size_t need = 0;

  bool ok() const noexcept { return have == need; }
  [[gnu::cold]] std::string problem() const {
    return std::string(call) + ": the larger buffer has " + std::to_string(have) + " elements, but the ranks and the other " +
           "buffer need " + std::to_string(need) + "; make the sizes fit";
  }
};

/// Ends a blocking call, after a check of its sizes.
template <class E, class Call>
outcome<E, void> run(const size_check &sizes, Call call) {
  if (!sizes.ok()) return refuse<E, void>(sizes.problem());
  return finish<E>(call(nullptr));
}

/// The type of the work of a call with two buffers. Temporaries move in.
template <class In, class Out>
using pair_work = std::conditional_t<
    is_moved_in<In>,
    std::conditional_t<is_moved_in<Out>, owning_work<std::remove_reference_t<In>, std::remove_reference_t<Out>>,
                       owning_work<std::remove_reference_t<In>>>,
    std::conditional_t<is_moved_in<Out>, owning_work<std::remove_reference_t<Out>>, work>>;

/// Issues a call with one buffer: `call(dist_work_t **, buffer &)`. An lvalue or a view stays with the caller, a
/// temporary moves into the work.
template <class E, class Call, class B>
auto issue(const size_check &sizes, Call call, B &&buffer) {
  dist_work_t *handle = nullptr;
  if constexpr (is_moved_in<B>) {
    using type = std::remove_reference_t<B>;
    if (!sizes.ok()) return refuse<E, owning_work<type>>(sizes.problem());
    auto memory = std::make_unique<owned_buffers<type>>(std::move(buffer));
    const dist_status_t status = call(&handle, std::get<0>(memory->buffers));
    return finish<E>(status, owning_work<type>(std::move(memory), handle));
  } else {
    if (!sizes.ok()) return refuse<E, work>(sizes.problem());
    const dist_status_t status = call(&handle, buffer);
    return finish<E>(status, work(handle));
  }
}

/// As issue, with a buffer that the call reads and one that it writes: `call(dist_work_t **, in &, out &)`.
template <class E, class Call, class In, class Out>
outcome<E, pair_work<In, Out>> issue_pair(const size_check &sizes, Call call, In &&in, Out &&out) {
  using in_type = std::remove_reference_t<In>;
  using out_type = std::remove_reference_t<Out>;
  using work_type = pair_work<In, Out>;
  if (!sizes.ok()) return refuse<E, work_type>(sizes.problem());
  dist_work_t *handle = nullptr;
  if constexpr (is_moved_in<In> && is_moved_in<Out>) {
    auto memory = std::make_unique<owned_buffers<in_type, out_type>>(std::move(in), std::move(out));
    const dist_status_t status = call(&handle, std::get<0>(memory->buffers), std::get<1>(memory->buffers));
    return finish<E>(status, work_type(std::move(memory), handle));
  } else if constexpr (is_moved_in<In>) {
    auto memory = std::make_unique<owned_buffers<in_type>>(std::move(in));
    const dist_status_t status = call(&handle, std::get<0>(memory->buffers), out);
    return finish<E>(status, work_type(std::move(memory), handle));
  } else if constexpr (is_moved_in<Out>) {
    auto memory = std::make_unique<owned_buffers<out_type>>(std::move(out));
    const dist_status_t status = call(&handle, in, std::get<0>(memory->buffers));
    return finish<E>(status, work_type(std::move(memory), handle));
  } else {
    const dist_status_t status = call(&handle, in, out);
    return finish<E>(status, work(handle));
  }
}

/// The handles of a range of works.
template <class R>
std::vector<dist_work_t *> handles_of(R &works) {
  std::vector<dist_work_t *> handles;
  for (auto &each : works) handles.push_back(each.get());
  return handles;
}

/// Calls a function that searches the works of a range for one that is done.
template <class E, class R, class F>
outcome<E, std::optional<std::size_t>> found_index(R &&works, F &&search) {
  const auto handles = handles_of(works);
  std::size_t index = handles.size();
  const dist_status_t status = search(handles.data(), handles.size(), &index);
  if (status == DIST_IN_PROGRESS || (status == DIST_OK && index == handles.size())) return std::optional<std::size_t>();
  return finish<E>(status, std::optional<std::size_t>(index));
}

}  // namespace detail

/// Waits until all works of a range are done. The error is that of the first work in the range that has one.
template <class R, class E = detail::default_errors>
detail::outcome<E, void> wait_all(R &&works, time_limit limit = {}, E = E{}) {
  const auto handles = detail::handles_of(works);
  return detail::finish<E>(dist_work_wait_all(handles.data(), handles.size(), limit.ms()));
}

/// Waits until a work of a range is done, and returns its index; nothing after the time limit, and if the range has no work.
template <class R, class E = detail::default_errors>
detail::outcome<E, std::optional<std::size_t>> wait_any(R &&works, time_limit limit = {}, E = E{}) {
  return detail::found_index<E>(works, [&](dist_work_t *const *handles, std::size_t n, std::size_t *index) {
    return dist_work_wait_any(handles, n, limit.ms(), index);
  });
}

/// Waits as wait_any for one slice of a longer wait. `left` is the rest of the whole wait. The search for deadlocks regards
/// repeated calls with the same works as one wait.
template <class R, class E = detail::default_errors>
detail::outcome<E, std::optional<std::size_t>> wait_any_slice(R &&works, time_limit slice = {}, time_limit left = {}, E = E{}) {
  return detail::found_index<E>(works, [&](dist_work_t *const *handles, std::size_t n, std::size_t *index) {
    return dist_work_wait_any_slice(handles, n, left.ms(), slice.ms(), index);
  });
}

/// Returns the index of a work of a range that is done, without waiting; nothing if there is none.
template <class R, class E = detail::default_errors>
detail::outcome<E, std::optional<std::size_t>> test_any(R &&works, E = E{}) {
  return detail::found_index<E>(works, [](dist_work_t *const *handles, std::size_t n, std::size_t *index) {
    return dist_work_test_any(handles, n, index);
  });
}

DIST_HPP_END

#endif  // DIST_WORK_HPP
