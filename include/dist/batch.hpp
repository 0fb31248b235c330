// Batches: calls that are issued together. A batch is a scope.
#ifndef DIST_BATCH_HPP
#define DIST_BATCH_HPP

#include "group.hpp"
#include "work.hpp"

#include <initializer_list>
#include <memory>
#include <utility>
#include <vector>

DIST_HPP_BEGIN

/// Collects the calls of this thread until run() or submit(), and issues them as one.
///
///     dist::batch batch;
///     world.all_reduce(a);          // checked and collected
///     world.all_reduce(b);
///     batch.run();                  // issued; small calls become one operation
///
/// A batch belongs to the thread that began it, and ends on this thread. All buffers are lent until the batch has
/// completed. The destructor of a batch that was neither run nor submitted issues the calls, since the
/// other ranks wait for them, and waits for their end.
class batch {
 public:
#if DIST_HPP_HAS_EXCEPTIONS
  /// Begins a batch on any groups, or on these only.
  batch() : batch(std::initializer_list<group_ref>{}) {}
  batch(std::initializer_list<group_ref> groups) : batch(begin(groups)) {}
#endif

  /// As the constructors. Failures are reported as by every other function.
  template <class E = detail::default_errors>
  static detail::outcome<E, batch> begin(std::initializer_list<group_ref> groups = {}, E = E{}) {
    std::vector<dist_group_t *> handles;
    for (const group_ref group : groups) handles.push_back(group.get());
    const dist_status_t status = dist_batch_begin(handles.data(), handles.size());
    return detail::finish<E>(status, status == DIST_OK ? batch(std::make_unique<detail::batch_remains>()) : batch(nullptr));
  }

  batch(batch &&) noexcept = default;
  batch &operator=(batch &&) = delete;
  ~batch() {
    if (!remains_) return;
    dist_work_t *handle = nullptr;
    static_cast<void>(close(&handle) == DIST_OK);
    const work all(handle);
  }

  /// Issues the calls, and waits until all have completed. The error is the first in the order of the calls.
  template <class E = detail::default_errors>
  detail::outcome<E, void> run(E = E{}) {
    const dist_status_t status = close(nullptr);
    const auto ended = std::move(remains_);
    return detail::finish<E>(status);
  }

  /// Issues the calls, and returns the work of all. The buffers stay lent until it is done.
  template <class E = detail::default_errors>
  [[nodiscard]] detail::outcome<E, work> submit(E = E{}) {
    dist_work_t *handle = nullptr;
    const dist_status_t status = close(&handle);
    return detail::finish<E>(status, work(handle, std::move(remains_)));
  }

 private:
  explicit batch(std::unique_ptr<detail::batch_remains> remains) noexcept : remains_(std::move(remains)) {
    if (remains_) detail::open_batch = remains_.get();
  }

  dist_status_t close(dist_work_t **handle) noexcept {
    detail::open_batch = nullptr;
    return dist_batch_end(handle);
  }

  /// Null once the batch has been run or submitted.
  std::unique_ptr<detail::batch_remains> remains_;
};

DIST_HPP_END

#endif  // DIST_BATCH_HPP
