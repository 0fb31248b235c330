// Collectives with blocks of one size: the functions of a group that all its ranks call.
#ifndef DIST_COLLECTIVES_HPP
#define DIST_COLLECTIVES_HPP

#include "work.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

DIST_HPP_BEGIN
namespace detail {

template <bool... Conditions>
using require = std::enable_if_t<(Conditions && ...)>;

/// A group as dist.h knows it. It is copied freely and owns nothing.
class group_handle {
 public:
  /// The rank of this process in the group.
  int rank() const noexcept { return dist_get_rank(group_); }
  /// The number of ranks.
  int size() const noexcept { return dist_get_world_size(group_); }
  dist_group_t *get() const noexcept { return group_; }

  friend bool operator==(const group_handle &a, const group_handle &b) noexcept { return a.group_ == b.group_; }
  friend bool operator!=(const group_handle &a, const group_handle &b) noexcept { return a.group_ != b.group_; }

 protected:
  explicit constexpr group_handle(dist_group_t *group) noexcept : group_(group) {}

  std::size_t ranks() const noexcept { return static_cast<std::size_t>(size() < 0 ? 0 : size()); }

  dist_group_t *group_;
};

/// Collectives whose ranks all have blocks of one size.
///
/// Small calls are always inlined: they cost a few instructions more than those of dist.h.
/// Forms with one buffer work in place. The sizes of the buffers are the counts of the operation: all ranks use the
/// same. Elements of types that the library does not know travel as bytes in calls that do not reduce.
class collectives : public group_handle {
 public:
  // --- reductions -----------------------------------------------------------------------------------------------

  /// Reduces the vectors of all ranks, and gives every rank the result, in place.
  template <class R, class O = op, class E = default_errors, class = require<is_buffer<R>, is_op<O>>>
  [[gnu::always_inline]] outcome<E, void> all_reduce(R &&inout, const O &operation = sum, const options &o = {}, E = E{}) const {
    const auto b = target(inout);
    return finish<E>(reduce_with<dist_all_reduce>(b.data, b, operation, o, nullptr));
  }

  /// Reduces `in` of all ranks into `out` of every rank.
  template <class In, class Out, class O = op, class E = default_errors,
            class = require<is_buffer<In>, is_buffer<Out>, is_op<O>>>
  outcome<E, void> all_reduce(const In &in, Out &&out, const O &operation = sum, const options &o = {}, E = E{}) const {
    return reduce_pair<E, dist_all_reduce>("all_reduce", in, out, operation, o);
  }

  template <class R, class O = op, class E = default_errors, class = require<is_buffer<R>, is_op<O>>>
  [[nodiscard]] auto all_reduce_async(R &&inout, const O &operation = sum, const options &o = {}, E = E{}) const {
    return start_in_place<E, dist_all_reduce>(std::forward<R>(inout), operation, o);
  }

  template <class In, class Out, class O = op, class E = default_errors,
            class = require<is_buffer<In>, is_buffer<Out>, is_op<O>>>
  [[nodiscard]] auto all_reduce_async(In &&in, Out &&out, const O &operation = sum, const options &o = {}, E = E{}) const {
    return start_pair<E, dist_all_reduce>("all_reduce", std::forward<In>(in), std::forward<Out>(out), operation, o);
  }

  /// Reduces one value, and returns the result.
  template <class T, class O = op, class E = default_errors, class = require<is_op<O>>>
  [[nodiscard]] outcome<E, T> all_reduce_value(T value, const O &operation = sum, const options &o = {}, E = E{}) const {
    const dist_status_t status = reduce_with<dist_all_reduce>(&value, view(&value, 1), operation, o, nullptr);
    return finish<E>(status, std::move(value));
  }

  /// Reduces the vectors of all ranks into the buffer of the root. The buffers of other ranks are unchanged.
  template <class R, class O = op, class E = default_errors, class = require<is_buffer<R>, is_op<O>>>
  outcome<E, void> reduce(R &&inout, int root, const O &operation = sum, const options &o = {}, E = E{}) const {
    const auto b = target(inout);
    return finish<E>(reduce_to(b.data, b, root, operation, o, nullptr));
  }

  /// Reduces `in` of all ranks into `out` of the root. The other ranks may pass an empty `out`.
  template <class In, class Out, class O = op, class E = default_errors,
            class = require<is_buffer<In>, is_buffer<Out>, is_op<O>>>
  outcome<E, void> reduce(const In &in, Out &&out, int root, const O &operation = sum, const options &o = {},
                          E = E{}) const {
    const auto i = source(in);
    const auto b = target(out);
    return run<E>(at_root(root, {"reduce", b.size, i.size}), [&](dist_work_t **w) {
      return reduce_to(i.data, view(b.data, i.size), root, operation, o, w);
    });
  }

  template <class R, class O = op, class E = default_errors, class = require<is_buffer<R>, is_op<O>>>
  [[nodiscard]] auto reduce_async(R &&inout, int root, const O &operation = sum, const options &o = {}, E = E{}) const {
    return issue<E>({}, [&](dist_work_t **w, auto &buffer) {
      const auto b = target(buffer);
      return reduce_to(b.data, b, root, operation, o, w);
    }, std::forward<R>(inout));
  }

  /// Reduces the vectors of all ranks: `in` has one block for each rank, and `out` receives this rank's block.
  template <class In, class Out, class O = op, class E = default_errors,
            class = require<is_buffer<In>, is_buffer<Out>, is_op<O>>>
  outcome<E, void> reduce_scatter(const In &in, Out &&out, const O &operation = sum, const options &o = {},
                                  E = E{}) const {
    return run<E>(blocks("reduce_scatter", source(in), target(out)), [&](dist_work_t **w) {
      return reduce_with<dist_reduce_scatter>(source(in).data, target(out), operation, o, w);
    });
  }

  template <class In, class Out, class O = op, class E = default_errors,
            class = require<is_buffer<In>, is_buffer<Out>, is_op<O>>>
  [[nodiscard]] auto reduce_scatter_async(In &&in, Out &&out, const O &operation = sum, const options &o = {},
                                          E = E{}) const {
    return issue_pair<E>(blocks("reduce_scatter", source(in), target(out)), [&](dist_work_t **w, auto &i, auto &b) {
      return reduce_with<dist_reduce_scatter>(source(i).data, target(b), operation, o, w);
    }, std::forward<In>(in), std::forward<Out>(out));
  }

  /// Gives rank r the reduction of the vectors of ranks 0 to r, in place.
  template <class R, class O = op, class E = default_errors, class = require<is_buffer<R>, is_op<O>>>
  outcome<E, void> scan(R &&inout, const O &operation = sum, const options &o = {}, E = E{}) const {
    const auto b = target(inout);
    return finish<E>(reduce_with<dist_scan>(b.data, b, operation, o, nullptr));
  }

  template <class In, class Out, class O = op, class E = default_errors,
            class = require<is_buffer<In>, is_buffer<Out>, is_op<O>>>
  outcome<E, void> scan(const In &in, Out &&out, const O &operation = sum, const options &o = {}, E = E{}) const {
    return reduce_pair<E, dist_scan>("scan", in, out, operation, o);
  }

  template <class R, class O = op, class E = default_errors, class = require<is_buffer<R>, is_op<O>>>
  [[nodiscard]] auto scan_async(R &&inout, const O &operation = sum, const options &o = {}, E = E{}) const {
    return start_in_place<E, dist_scan>(std::forward<R>(inout), operation, o);
  }

  /// Gives rank r the reduction of the vectors of ranks 0 to r - 1, in place. The buffer of rank 0 is unchanged.
  template <class R, class O = op, class E = default_errors, class = require<is_buffer<R>, is_op<O>>>
  outcome<E, void> exscan(R &&inout, const O &operation = sum, const options &o = {}, E = E{}) const {
    const auto b = target(inout);
    return finish<E>(reduce_with<dist_exscan>(b.data, b, operation, o, nullptr));
  }

  template <class In, class Out, class O = op, class E = default_errors,
            class = require<is_buffer<In>, is_buffer<Out>, is_op<O>>>
  outcome<E, void> exscan(const In &in, Out &&out, const O &operation = sum, const options &o = {}, E = E{}) const {
    return reduce_pair<E, dist_exscan>("exscan", in, out, operation, o);
  }

  template <class R, class O = op, class E = default_errors, class = require<is_buffer<R>, is_op<O>>>
  [[nodiscard]] auto exscan_async(R &&inout, const O &operation = sum, const options &o = {}, E = E{}) const {
    return start_in_place<E, dist_exscan>(std::forward<R>(inout), operation, o);
  }

  // --- movement of data -----------------------------------------------------------------------------------------

  /// Gives every rank the elements of the root, in place.
  template <class R, class E = default_errors, class = require<is_buffer<R>>>
  [[gnu::always_inline]] outcome<E, void> broadcast(R &&inout, int root, const options &o = {}, E = E{}) const {
    return finish<E>(broadcast_with(target(inout), root, o, nullptr));
  }

  template <class R, class E = default_errors, class = require<is_buffer<R>>>
  [[nodiscard]] auto broadcast_async(R &&inout, int root, const options &o = {}, E = E{}) const {
    return issue<E>({}, [&](dist_work_t **w, auto &b) { return broadcast_with(target(b), root, o, w); },
                    std::forward<R>(inout));
  }

  /// Returns the value of the root.
  template <class T, class E = default_errors>
  [[nodiscard]] outcome<E, T> broadcast_value(T value, int root, const options &o = {}, E = E{}) const {
    require_element<T>();
    const dist_status_t status = broadcast_with(view(&value, 1), root, o, nullptr);
    return finish<E>(status, std::move(value));
  }

  /// Gives every rank the elements of all ranks, in rank order: `out` has room for a block of each rank.
  template <class In, class Out, class E = default_errors, class = require<is_buffer<In>, is_buffer<Out>>>
  outcome<E, void> all_gather(const In &in, Out &&out, const options &o = {}, E = E{}) const {
    return run<E>(blocks("all_gather", target(out), source(in)), [&](dist_work_t **w) {
      return copy_with<dist_all_gather>(source(in), target(out).data, o, w);
    });
  }

  /// Returns the elements of all ranks, in rank order.
  template <class In, class E = default_errors, class = require<is_buffer<const In>>>
  [[nodiscard]] outcome<E, std::vector<value_of<const In>>> all_gather(const In &in, const options &o = {}, E = E{}) const {
    std::vector<value_of<const In>> out(source(in).size * ranks());
    const dist_status_t status = copy_with<dist_all_gather>(source(in), target(out).data, o, nullptr);
    return finish<E>(status, std::move(out));
  }

  template <class In, class Out, class E = default_errors, class = require<is_buffer<In>, is_buffer<Out>>>
  [[nodiscard]] auto all_gather_async(In &&in, Out &&out, const options &o = {}, E = E{}) const {
    return issue_pair<E>(blocks("all_gather", target(out), source(in)), [&](dist_work_t **w, auto &i, auto &b) {
      return copy_with<dist_all_gather>(source(i), target(b).data, o, w);
    }, std::forward<In>(in), std::forward<Out>(out));
  }

  /// Gives the root the elements of all ranks, in rank order. The other ranks may pass an empty `out`.
  template <class In, class Out, class E = default_errors, class = require<is_buffer<In>, is_buffer<Out>>>
  outcome<E, void> gather(const In &in, Out &&out, int root, const options &o = {}, E = E{}) const {
    return run<E>(at_root(root, blocks("gather", target(out), source(in))), [&](dist_work_t **w) {
      return copy_with<dist_gather>(source(in), target(out).data, root, o, w);
    });
  }

  /// Returns the elements of all ranks on the root, in rank order, and nothing on the other ranks.
  template <class In, class E = default_errors, class = require<is_buffer<const In>>>
  [[nodiscard]] outcome<E, std::vector<value_of<const In>>> gather(const In &in, int root, const options &o = {},
                                                                  E = E{}) const {
    std::vector<value_of<const In>> out(rank() == root ? source(in).size * ranks() : 0);
    const dist_status_t status = copy_with<dist_gather>(source(in), target(out).data, root, o, nullptr);
    return finish<E>(status, std::move(out));
  }

  template <class In, class Out, class E = default_errors, class = require<is_buffer<In>, is_buffer<Out>>>
  [[nodiscard]] auto gather_async(In &&in, Out &&out, int root, const options &o = {}, E = E{}) const {
    const size_check sizes = at_root(root, blocks("gather", target(out), source(in)));
    return issue_pair<E>(sizes, [&](dist_work_t **w, auto &i, auto &b) {
      return copy_with<dist_gather>(source(i), target(b).data, root, o, w);
    }, std::forward<In>(in), std::forward<Out>(out));
  }

  /// Gives each rank its block of the root's `in`. The other ranks may pass an empty `in`.
  template <class In, class Out, class E = default_errors, class = require<is_buffer<In>, is_buffer<Out>>>
  outcome<E, void> scatter(const In &in, Out &&out, int root, const options &o = {}, E = E{}) const {
    return run<E>(at_root(root, blocks("scatter", source(in), target(out))), [&](dist_work_t **w) {
      return scatter_with(source(in), target(out), root, o, w);
    });
  }

  template <class In, class Out, class E = default_errors, class = require<is_buffer<In>, is_buffer<Out>>>
  [[nodiscard]] auto scatter_async(In &&in, Out &&out, int root, const options &o = {}, E = E{}) const {
    const size_check sizes = at_root(root, blocks("scatter", source(in), target(out)));
    return issue_pair<E>(sizes, [&](dist_work_t **w, auto &i, auto &b) {
      return scatter_with(source(i), target(b), root, o, w);
    }, std::forward<In>(in), std::forward<Out>(out));
  }

  /// Exchanges blocks between all pairs of ranks: block j of rank i becomes block i of rank j.
  template <class In, class Out, class E = default_errors, class = require<is_buffer<In>, is_buffer<Out>>>
  outcome<E, void> all_to_all(const In &in, Out &&out, const options &o = {}, E = E{}) const {
    return run<E>(exchange(source(in), target(out)), [&](dist_work_t **w) {
      return copy_with<dist_all_to_all>(block_of(source(in)), target(out).data, o, w);
    });
  }

  template <class In, class Out, class E = default_errors, class = require<is_buffer<In>, is_buffer<Out>>>
  [[nodiscard]] auto all_to_all_async(In &&in, Out &&out, const options &o = {}, E = E{}) const {
    return issue_pair<E>(exchange(source(in), target(out)), [&](dist_work_t **w, auto &i, auto &b) {
      return copy_with<dist_all_to_all>(block_of(source(i)), target(b).data, o, w);
    }, std::forward<In>(in), std::forward<Out>(out));
  }

  // --- synchronisation ------------------------------------------------------------------------------------------

  /// Waits until all ranks have called it.
  template <class E = default_errors>
  outcome<E, void> barrier(const options &o = {}, E = E{}) const {
    return finish<E>(with_options(o, [&](const dist_call_options_t *c) { return dist_barrier(group_, c, nullptr); }));
  }

  template <class E = default_errors>
  [[nodiscard]] outcome<E, work> barrier_async(const options &o = {}, E = E{}) const {
    dist_work_t *handle = nullptr;
    const auto call = [&](const dist_call_options_t *c) { return dist_barrier(group_, c, &handle); };
    const dist_status_t status = with_options(o, call);
    return finish<E>(status, work(handle));
  }

  /// A barrier that names the ranks which have not called it within a time: those, or none. It does not fail the group.
  template <class E = default_errors>
  [[nodiscard]] outcome<E, std::vector<int>> monitored_barrier(time_limit limit = {}, bool wait_all_ranks = true,
                                                               E = E{}) const {
    std::vector<std::int32_t> missing(ranks());
    std::size_t count = missing.size();
    const dist_status_t status =
        dist_monitored_barrier(group_, limit.ms(), wait_all_ranks ? 1 : 0, missing.data(), &count);
    const bool names_ranks = status == DIST_ERR_TIMEOUT || status == DIST_ERR_PEER_FAILED;
    if (status != DIST_OK && !(names_ranks && count > 0)) return fail<E, std::vector<int>>(last_failure(status));
    missing.resize(status == DIST_OK ? 0 : (count < missing.size() ? count : missing.size()));
    return std::vector<int>(missing.begin(), missing.end());
  }

  /// The lowest rank whose bytes differ from those of rank 0, the same on all ranks; nothing if all are equal.
  template <class E = default_errors>
  [[nodiscard]] outcome<E, std::optional<int>> find_difference(byte_view bytes, const options &o = {}, E = E{}) const {
    std::int32_t differing = -1;
    const dist_status_t status = with_options(o, [&](const dist_call_options_t *c) {
      return dist_all_equal(group_, bytes.data(), bytes.size(), nullptr, &differing, c);
    });
    return finish<E>(status, differing < 0 ? std::optional<int>() : std::optional<int>(differing));
  }

  /// Whether all ranks have the same bytes; the same answer on all ranks.
  template <class E = default_errors>
  [[nodiscard]] outcome<E, bool> all_equal(byte_view bytes, const options &o = {}, E = E{}) const {
    std::int32_t equal = 0;
    const dist_status_t status = with_options(o, [&](const dist_call_options_t *c) {
      return dist_all_equal(group_, bytes.data(), bytes.size(), &equal, nullptr, c);
    });
    return finish<E>(status, equal != 0);
  }

 protected:
  using group_handle::group_handle;

 private:
  /// One of all_reduce, reduce_scatter, scan and exscan. `out` gives the count.
  template <auto Function, class T, class O>
  [[gnu::always_inline]] dist_status_t reduce_with(const T *in, buffer<T> out, const O &operation, const options &o, dist_work_t **w) const {
    const reduction_codes codes = reduction<T>(operation);
    return with_options(o, operation, [&](const dist_call_options_t *c) {
      return Function(group_, in, out.data, out.size, codes.dtype, codes.op, c, w);
    });
  }

  template <class T, class O>
  dist_status_t reduce_to(const T *in, buffer<T> out, int root, const O &operation, const options &o,
                          dist_work_t **w) const {
    const reduction_codes codes = reduction<T>(operation);
    return with_options(o, operation, [&](const dist_call_options_t *c) {
      return dist_reduce(group_, in, out.data, out.size, codes.dtype, codes.op, root, c, w);
    });
  }

  template <class E, auto Function, class In, class Out, class O>
  outcome<E, void> reduce_pair(const char *name, const In &in, Out &out, const O &operation, const options &o) const {
    return run<E>({name, target(out).size, source(in).size}, [&](dist_work_t **w) {
      return reduce_with<Function>(source(in).data, target(out), operation, o, w);
    });
  }

  template <class E, auto Function, class R, class O>
  auto start_in_place(R &&inout, const O &operation, const options &o) const {
    return issue<E>({}, [&](dist_work_t **w, auto &buffer) {
      const auto b = target(buffer);
      return reduce_with<Function>(b.data, b, operation, o, w);
    }, std::forward<R>(inout));
  }

  template <class E, auto Function, class In, class Out, class O>
  auto start_pair(const char *name, In &&in, Out &&out, const O &operation, const options &o) const {
    return issue_pair<E>({name, target(out).size, source(in).size}, [&](dist_work_t **w, auto &i, auto &b) {
      return reduce_with<Function>(source(i).data, target(b), operation, o, w);
    }, std::forward<In>(in), std::forward<Out>(out));
  }

  template <class T>
  [[gnu::always_inline]] dist_status_t broadcast_with(buffer<T> b, int root, const options &o, dist_work_t **w) const {
    return with_options(o, [&](const dist_call_options_t *c) {
      return dist_broadcast(group_, b.data, b.size * wire<T>::units, wire<T>::dtype, root, c, w);
    });
  }

  /// One of all_gather and all_to_all. `in` gives the count of a block.
  template <auto Function, class T>
  dist_status_t copy_with(buffer<const T> in, T *out, const options &o, dist_work_t **w) const {
    return with_options(o, [&](const dist_call_options_t *c) {
      return Function(group_, in.data, out, in.size * wire<T>::units, wire<T>::dtype, c, w);
    });
  }

  /// The same with a root: gather.
  template <auto Function, class T>
  dist_status_t copy_with(buffer<const T> in, T *out, int root, const options &o, dist_work_t **w) const {
    return with_options(o, [&](const dist_call_options_t *c) {
      return Function(group_, in.data, out, in.size * wire<T>::units, wire<T>::dtype, root, c, w);
    });
  }

  template <class T>
  dist_status_t scatter_with(buffer<const T> in, buffer<T> out, int root, const options &o, dist_work_t **w) const {
    return with_options(o, [&](const dist_call_options_t *c) {
      return dist_scatter(group_, in.data, out.data, out.size * wire<T>::units, wire<T>::dtype, root, c, w);
    });
  }

  /// The larger buffer has a block as large as the smaller one for each rank.
  template <class Large, class Small>
  size_check blocks(const char *name, buffer<Large> large, buffer<Small> small) const {
    static_assert(std::is_same_v<std::remove_cv_t<Large>, std::remove_cv_t<Small>>, "the two buffers have different types");
    return {name, large.size, small.size * ranks()};
  }

  /// The buffers of all_to_all have one size, a multiple of the number of ranks.
  template <class T>
  size_check exchange(buffer<const T> in, buffer<T> out) const {
    const std::size_t whole = ranks() == 0 ? in.size : in.size / ranks() * ranks();
    return {"all_to_all", out.size, in.size == whole ? whole : whole + ranks()};
  }

  template <class T>
  buffer<T> block_of(buffer<T> all) const noexcept {
    return {all.data, ranks() == 0 ? 0 : all.size / ranks()};
  }

  /// A check that only the root makes.
  size_check at_root(int root, size_check sizes) const noexcept { return rank() == root ? sizes : size_check{}; }
};

}  // namespace detail
DIST_HPP_END

#endif  // DIST_COLLECTIVES_HPP
