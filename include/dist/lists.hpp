// Collectives on lists of tensors: many tensors of any types, in place, with one call.
#ifndef DIST_LISTS_HPP
#define DIST_LISTS_HPP

#include "vectors.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

DIST_HPP_BEGIN

/// A tensor of a list. It borrows the elements, which are contiguous.
///
///     std::vector<float> weight(15), bias(3);
///     world.broadcast_list({dist::tensor("weight", weight, {5, 3}), dist::tensor("bias", bias)}, 0);
class tensor {
 public:
  /// A tensor with one dimension. The elements are a buffer, for example dist::view(pointer, size).
  template <class R>
  tensor(std::string name, R &&elements) : name_(std::move(name)) {
    static_assert(!detail::is_moved_in<R>, "a tensor borrows its elements: pass an lvalue or a view");
    using T = detail::value_of<R>;
    static_assert(is_reducible_v<T>, "no element type of the library: specialise dist::dtype_of for it");
    const auto buffer = detail::target(elements);
    c_.data = buffer.data;
    c_.dtype = dtype_v<T>;
    shape_.push_back(static_cast<std::int64_t>(buffer.size));
    size_ = buffer.size;
  }

  /// A tensor with these extents, whose product is the number of the elements. All ranks compare the extents.
  template <class R>
  tensor(std::string name, R &&elements, std::vector<std::int64_t> extents) : tensor(std::move(name), std::forward<R>(elements)) {
    shape_ = std::move(extents);
  }

  /// The index of the group's GPU, whose memory has the elements.
  tensor with_device(int index) const {
    tensor changed = *this;
    changed.c_.device = static_cast<std::int32_t>(index);
    changed.c_.fields |= DIST_FIELD_DEVICE;
    return changed;
  }

  const std::string &name() const noexcept { return name_; }

  /// The description of dist.h, valid as long as this object.
  dist_tensor_t get() const noexcept {
    dist_tensor_t c = c_;
    c.name = name_.c_str();
    c.shape = shape_.empty() ? nullptr : shape_.data();
    c.n_shape = shape_.size();
    return c;
  }

  /// Whether the extents have as many elements as the buffer.
  bool has_fitting_shape() const noexcept {
    std::size_t left = size_;
    for (const std::int64_t extent : shape_) {
      if (extent == 0) return size_ == 0;
      if (extent < 0 || left % static_cast<std::size_t>(extent) != 0) return false;
      left /= static_cast<std::size_t>(extent);
    }
    return left == 1 || size_ == 0;
  }

 private:
  std::string name_;
  std::vector<std::int64_t> shape_;
  dist_tensor_t c_ = DIST_TENSOR_INIT;
  std::size_t size_ = 0;
};

namespace detail {

/// Collectives on lists of tensors. The elements of a call that returns a work are lent until the work has completed; the
/// list itself is only read by the call.
class list_collectives : public vector_collectives {
 public:
  /// Copies the tensors of the root to all ranks. If the lists of the ranks differ, every rank gets errc::mismatch, and the
  /// group can be used further.
  template <class E = default_errors>
  outcome<E, void> broadcast_list(const std::vector<tensor> &tensors, int root, const options &o = {}, E = E{}) const {
    return run_list<E>(tensors, "broadcast_list", [&](const auto &all, dist_work_t **w) { return broadcast_with(all, root, o, w); });
  }
  template <class E = default_errors>
  [[nodiscard]] outcome<E, work> broadcast_list_async(const std::vector<tensor> &tensors, int root, const options &o = {},
                                                      E = E{}) const {
    return start_list<E>(tensors, "broadcast_list", [&](const auto &all, dist_work_t **w) { return broadcast_with(all, root, o, w); });
  }

  /// Reduces the tensors of all ranks, and gives every rank the results.
  template <class E = default_errors>
  outcome<E, void> all_reduce_list(const std::vector<tensor> &tensors, const op &operation = sum, const options &o = {},
                                   E = E{}) const {
    return run_list<E>(tensors, "all_reduce_list",
                       [&](const auto &all, dist_work_t **w) { return reduce_with<dist_all_reduce_list>(all, operation, o, w); });
  }
  template <class E = default_errors>
  [[nodiscard]] outcome<E, work> all_reduce_list_async(const std::vector<tensor> &tensors, const op &operation = sum,
                                                       const options &o = {}, E = E{}) const {
    return start_list<E>(tensors, "all_reduce_list",
                         [&](const auto &all, dist_work_t **w) { return reduce_with<dist_all_reduce_list>(all, operation, o, w); });
  }

  /// Each tensor has one block for each rank. Every rank gets block r of rank r.
  template <class E = default_errors>
  outcome<E, void> all_gather_list(const std::vector<tensor> &tensors, const options &o = {}, E = E{}) const {
    return run_list<E>(tensors, "all_gather_list", [&](const auto &all, dist_work_t **w) { return gather_with(all, o, w); });
  }
  template <class E = default_errors>
  [[nodiscard]] outcome<E, work> all_gather_list_async(const std::vector<tensor> &tensors, const options &o = {}, E = E{}) const {
    return start_list<E>(tensors, "all_gather_list", [&](const auto &all, dist_work_t **w) { return gather_with(all, o, w); });
  }

  /// Each tensor has one block for each rank. Rank r gets the reduction of block r, in its block r.
  template <class E = default_errors>
  outcome<E, void> reduce_scatter_list(const std::vector<tensor> &tensors, const op &operation = sum, const options &o = {},
                                       E = E{}) const {
    return run_list<E>(tensors, "reduce_scatter_list", [&](const auto &all, dist_work_t **w) {
      return reduce_with<dist_reduce_scatter_list>(all, operation, o, w);
    });
  }
  template <class E = default_errors>
  [[nodiscard]] outcome<E, work> reduce_scatter_list_async(const std::vector<tensor> &tensors, const op &operation = sum,
                                                           const options &o = {}, E = E{}) const {
    return start_list<E>(tensors, "reduce_scatter_list", [&](const auto &all, dist_work_t **w) {
      return reduce_with<dist_reduce_scatter_list>(all, operation, o, w);
    });
  }

 protected:
  using vector_collectives::vector_collectives;

 private:
  using c_list = std::vector<dist_tensor_t>;

  static c_list c_tensors(const std::vector<tensor> &tensors) {
    c_list all;
    all.reserve(tensors.size());
    for (const tensor &each : tensors) all.push_back(each.get());
    return all;
  }

  /// The error for the first tensor whose extents do not fit its buffer; empty if there is none.
  static std::string misfit(const std::vector<tensor> &tensors, const char *name) {
    for (const tensor &each : tensors) {
      if (each.has_fitting_shape()) continue;
      return std::string(name) + ": the extents of tensor \"" + each.name() +
             "\" do not have as many elements as its buffer; make the sizes fit";
    }
    return {};
  }

  template <class E, class Call>
  static outcome<E, void> run_list(const std::vector<tensor> &tensors, const char *name, Call call) {
    std::string problem = misfit(tensors, name);
    if (!problem.empty()) return refuse<E, void>(std::move(problem));
    return finish<E>(call(c_tensors(tensors), nullptr));
  }

  template <class E, class Call>
  static outcome<E, work> start_list(const std::vector<tensor> &tensors, const char *name, Call call) {
    std::string problem = misfit(tensors, name);
    if (!problem.empty()) return refuse<E, work>(std::move(problem));
    dist_work_t *handle = nullptr;
    const dist_status_t status = call(c_tensors(tensors), &handle);
    return finish<E>(status, work(handle));
  }

  dist_status_t broadcast_with(const c_list &all, int root, const options &o, dist_work_t **w) const {
    return with_options(o, [&](const dist_call_options_t *c) {
      return dist_broadcast_list(group_, all.data(), all.size(), root, c, w);
    });
  }

  dist_status_t gather_with(const c_list &all, const options &o, dist_work_t **w) const {
    return with_options(o, [&](const dist_call_options_t *c) {
      return dist_all_gather_list(group_, all.data(), all.size(), c, w);
    });
  }

  template <auto Function>
  dist_status_t reduce_with(const c_list &all, const op &operation, const options &o, dist_work_t **w) const {
    return with_options(o, operation, [&](const dist_call_options_t *c) {
      return Function(group_, all.data(), all.size(), operation.code, c, w);
    });
  }
};

}  // namespace detail
DIST_HPP_END

#endif  // DIST_LISTS_HPP
