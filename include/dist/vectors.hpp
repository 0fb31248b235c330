// Collectives whose blocks have different sizes, and collectives on byte strings.
#ifndef DIST_VECTORS_HPP
#define DIST_VECTORS_HPP

#include "collectives.hpp"

#include <cstddef>
#include <type_traits>
#include <utility>
#include <vector>

DIST_HPP_BEGIN

/// The elements of all ranks, one block after the other, and the size of each block.
template <class T>
struct gathered {
  std::vector<T> data;
  std::vector<std::size_t> counts;

  /// The block of a rank.
  buffer<const T> block(int rank) const {
    std::size_t begin = 0;
    for (int i = 0; i < rank; ++i) begin += counts[static_cast<std::size_t>(i)];
    return {data.data() + begin, counts[static_cast<std::size_t>(rank)]};
  }
};

namespace detail {

/// Collectives with one buffer for each rank, given as a range of buffers (`std::vector<std::vector<float>>`).
class vector_collectives : public collectives {
 public:
  /// Gives every rank the elements of all ranks: `outs[i]` receives those of rank i. Its sizes are the counts.
  template <class In, class Outs, class E = default_errors,
            class = require<is_buffer<In>, is_range_of_buffers<Outs>()>>
  outcome<E, void> all_gather_v(const In &in, Outs &&outs, const options &o = {}, E = E{}) const {
    return run<E>(one_each("all_gather_v", outs), [&](dist_work_t **w) { return all_gather_to(source(in), targets(outs), o, w); });
  }

  template <class In, class Outs, class E = default_errors,
            class = require<is_buffer<In>, is_range_of_buffers<Outs>()>>
  [[nodiscard]] auto all_gather_v_async(In &&in, Outs &&outs, const options &o = {}, E = E{}) const {
    return issue_pair<E>(one_each("all_gather_v", outs), [&](dist_work_t **w, auto &i, auto &b) {
      return all_gather_to(source(i), targets(b), o, w);
    }, std::forward<In>(in), std::forward<Outs>(outs));
  }

  /// The same into one buffer. The block of rank i has `counts[i]` elements and begins at element `displacements[i]`.
  /// Without displacements the blocks follow each other.
  template <class In, class Out, class E = default_errors, class = require<is_buffer<In>, is_buffer<Out>, !is_range_of_buffers<Out>()>>
  outcome<E, void> all_gather_v(const In &in, Out &&out, const std::vector<std::size_t> &counts,
                                const std::vector<std::size_t> &displacements = {}, const options &o = {},
                                E = E{}) const {
    return run<E>(fits("all_gather_v", target(out).size, counts, displacements), [&](dist_work_t **w) {
      return all_gather_at(source(in), target(out), counts, displacements, o, w);
    });
  }

  template <class In, class Out, class E = default_errors, class = require<is_buffer<In>, is_buffer<Out>, !is_range_of_buffers<Out>()>>
  [[nodiscard]] auto all_gather_v_async(In &&in, Out &&out, const std::vector<std::size_t> &counts,
                                        const std::vector<std::size_t> &displacements = {}, const options &o = {},
                                        E = E{}) const {
    const size_check sizes = fits("all_gather_v", target(out).size, counts, displacements);
    return issue_pair<E>(sizes, [&](dist_work_t **w, auto &i, auto &b) {
      return all_gather_at(source(i), target(b), counts, displacements, o, w);
    }, std::forward<In>(in), std::forward<Out>(out));
  }

  /// Returns the elements of all ranks, whatever number each has. It exchanges the counts first.
  template <class In, class E = default_errors, class = require<is_buffer<const In>>>
  [[nodiscard]] outcome<E, gathered<value_of<const In>>> all_gather_v(const In &in, const options &o = {}, E = E{}) const {
    using T = value_of<const In>;
    gathered<T> all;
    auto counts = all_gather_counts(source(in).size, o, nothrow);
    if (!counts) return fail<E, gathered<T>>(counts.error());
    all.counts = *std::move(counts);
    std::size_t total = 0;
    for (const std::size_t count : all.counts) total += count;
    all.data.resize(total);
    const dist_status_t status = all_gather_at(source(in), target(all.data), all.counts, {}, o, nullptr);
    return finish<E>(status, std::move(all));
  }

  /// Returns a number of each rank, in rank order.
  template <class E = default_errors>
  [[nodiscard]] outcome<E, std::vector<std::size_t>> all_gather_counts(std::size_t count, const options &o = {},
                                                                      E = E{}) const {
    std::vector<std::size_t> counts(ranks());
    const dist_status_t status = with_options(o, [&](const dist_call_options_t *c) {
      return dist_all_gather_counts(group_, count, counts.data(), c, nullptr);
    });
    return finish<E>(status, std::move(counts));
  }

  /// Gives the root the elements of all ranks: its `outs[i]` receives those of rank i. The other ranks may pass no buffers.
  template <class In, class Outs, class E = default_errors,
            class = require<is_buffer<In>, is_range_of_buffers<Outs>()>>
  outcome<E, void> gather_v(const In &in, Outs &&outs, int root, const options &o = {}, E = E{}) const {
    return run<E>(root_has_all("gather_v", root, outs), [&](dist_work_t **w) { return gather_to(source(in), targets(outs), root, o, w); });
  }

  template <class In, class Outs, class E = default_errors,
            class = require<is_buffer<In>, is_range_of_buffers<Outs>()>>
  [[nodiscard]] auto gather_v_async(In &&in, Outs &&outs, int root, const options &o = {}, E = E{}) const {
    return issue_pair<E>(root_has_all("gather_v", root, outs), [&](dist_work_t **w, auto &i, auto &b) {
      return gather_to(source(i), targets(b), root, o, w);
    }, std::forward<In>(in), std::forward<Outs>(outs));
  }

  /// Gives each rank its buffer of the root's `ins`. The other ranks may pass no buffers.
  template <class Ins, class Out, class E = default_errors,
            class = require<is_range_of_buffers<const Ins>(), is_buffer<Out>>>
  outcome<E, void> scatter_v(const Ins &ins, Out &&out, int root, const options &o = {}, E = E{}) const {
    return run<E>(root_has_all("scatter_v", root, ins), [&](dist_work_t **w) { return scatter_from(sources(ins), target(out), root, o, w); });
  }

  template <class Ins, class Out, class E = default_errors,
            class = require<is_range_of_buffers<Ins>(), is_buffer<Out>>>
  [[nodiscard]] auto scatter_v_async(Ins &&ins, Out &&out, int root, const options &o = {}, E = E{}) const {
    return issue_pair<E>(root_has_all("scatter_v", root, ins), [&](dist_work_t **w, auto &i, auto &b) {
      return scatter_from(sources(i), target(b), root, o, w);
    }, std::forward<Ins>(ins), std::forward<Out>(out));
  }

  /// Reduces one buffer for each rank: rank i receives the reduction of the `ins[i]` of all ranks.
  template <class Ins, class Out, class O = op, class E = default_errors,
            class = require<is_range_of_buffers<const Ins>(), is_buffer<Out>, is_op<O>>>
  outcome<E, void> reduce_scatter_v(const Ins &ins, Out &&out, const O &operation = sum, const options &o = {},
                                    E = E{}) const {
    return run<E>(own_fits("reduce_scatter_v", ins, target(out).size), [&](dist_work_t **w) {
      return reduce_from(sources(ins), target(out), operation, o, w);
    });
  }

  template <class Ins, class Out, class O = op, class E = default_errors,
            class = require<is_range_of_buffers<Ins>(), is_buffer<Out>, is_op<O>>>
  [[nodiscard]] auto reduce_scatter_v_async(Ins &&ins, Out &&out, const O &operation = sum, const options &o = {},
                                            E = E{}) const {
    return issue_pair<E>(own_fits("reduce_scatter_v", ins, target(out).size), [&](dist_work_t **w, auto &i, auto &b) {
      return reduce_from(sources(i), target(b), operation, o, w);
    }, std::forward<Ins>(ins), std::forward<Out>(out));
  }

  /// Exchanges a buffer between all pairs of ranks: `ins[j]` of rank i becomes `outs[i]` of rank j.
  template <class Ins, class Outs, class E = default_errors,
            class = require<is_range_of_buffers<const Ins>(), is_range_of_buffers<Outs>()>>
  outcome<E, void> all_to_all_v(const Ins &ins, Outs &&outs, const options &o = {}, E = E{}) const {
    return run<E>(both_each("all_to_all_v", ins, outs), [&](dist_work_t **w) { return exchange_v(sources(ins), targets(outs), o, w); });
  }

  template <class Ins, class Outs, class E = default_errors,
            class = require<is_range_of_buffers<Ins>(), is_range_of_buffers<Outs>()>>
  [[nodiscard]] auto all_to_all_v_async(Ins &&ins, Outs &&outs, const options &o = {}, E = E{}) const {
    return issue_pair<E>(both_each("all_to_all_v", ins, outs), [&](dist_work_t **w, auto &i, auto &b) {
      return exchange_v(sources(i), targets(b), o, w);
    }, std::forward<Ins>(ins), std::forward<Outs>(outs));
  }

  // --- byte strings: texts and serialised objects of any length ---------------------------------------------------

  /// Returns the bytes of the root. The other ranks pass anything.
  template <class E = default_errors>
  [[nodiscard]] outcome<E, blob> broadcast_bytes(byte_view bytes, int root, const options &o = {}, E = E{}) const {
    blob out;
    const dist_status_t status = with_options(o, [&](const dist_call_options_t *c) {
      return dist_broadcast_bytes(group_, bytes.data(), bytes.size(), root, out.out(), c, nullptr);
    });
    return finish<E>(status, std::move(out));
  }

  /// Returns the bytes of all ranks, in rank order.
  template <class E = default_errors>
  [[nodiscard]] outcome<E, blob> all_gather_bytes(byte_view bytes, const options &o = {}, E = E{}) const {
    blob out;
    const dist_status_t status = with_options(o, [&](const dist_call_options_t *c) {
      return dist_all_gather_bytes(group_, bytes.data(), bytes.size(), out.out(), c, nullptr);
    });
    return finish<E>(status, std::move(out));
  }

  /// Returns the bytes of all ranks on the root, and an empty blob on the other ranks.
  template <class E = default_errors>
  [[nodiscard]] outcome<E, blob> gather_bytes(byte_view bytes, int root, const options &o = {}, E = E{}) const {
    blob out;
    const dist_status_t status = with_options(o, [&](const dist_call_options_t *c) {
      return dist_gather_bytes(group_, bytes.data(), bytes.size(), root, out.out(), c, nullptr);
    });
    return finish<E>(status, std::move(out));
  }

  /// Returns this rank's bytes from the root, which passes one byte string for each rank.
  template <class E = default_errors>
  [[nodiscard]] outcome<E, blob> scatter_bytes(const std::vector<byte_view> &bytes, int root, const options &o = {},
                                               E = E{}) const {
    std::vector<const void *> data;
    std::vector<std::size_t> sizes;
    for (const byte_view &each : bytes) {
      data.push_back(each.data());
      sizes.push_back(each.size());
    }
    const size_check all = rank() == root ? size_check{"scatter_bytes", bytes.size(), ranks()} : size_check{};
    if (!all.ok()) return refuse<E, blob>(all.problem());
    blob out;
    const dist_status_t status = with_options(o, [&](const dist_call_options_t *c) {
      return dist_scatter_bytes(group_, data.data(), sizes.data(), root, out.out(), c, nullptr);
    });
    return finish<E>(status, std::move(out));
  }

  /// As broadcast_bytes; take() returns the blob. The bytes of the root are lent until then.
  template <class E = default_errors>
  outcome<E, owning_work<blob>> broadcast_bytes_async(byte_view bytes, int root, const options &o = {}, E = E{}) const {
    return start_blob<E>(o, [&](blob &out, const dist_call_options_t *c, dist_work_t **w) {
      return dist_broadcast_bytes(group_, bytes.data(), bytes.size(), root, out.out(), c, w);
    });
  }

  template <class E = default_errors>
  outcome<E, owning_work<blob>> all_gather_bytes_async(byte_view bytes, const options &o = {}, E = E{}) const {
    return start_blob<E>(o, [&](blob &out, const dist_call_options_t *c, dist_work_t **w) {
      return dist_all_gather_bytes(group_, bytes.data(), bytes.size(), out.out(), c, w);
    });
  }

  template <class E = default_errors>
  outcome<E, owning_work<blob>> gather_bytes_async(byte_view bytes, int root, const options &o = {}, E = E{}) const {
    return start_blob<E>(o, [&](blob &out, const dist_call_options_t *c, dist_work_t **w) {
      return dist_gather_bytes(group_, bytes.data(), bytes.size(), root, out.out(), c, w);
    });
  }

 protected:
  using collectives::collectives;

  template <class E, class Call>
  static outcome<E, owning_work<blob>> start_blob(const options &o, Call call) {
    return issue<E>({}, [&](dist_work_t **w, blob &out) {
      return with_options(o, [&](const dist_call_options_t *c) { return call(out, c, w); });
    }, blob());
  }

 private:
  template <class T>
  static std::vector<std::size_t> units(std::vector<std::size_t> counts) {
    for (std::size_t &count : counts) count *= wire<T>::units;
    return counts;
  }

  template <class T>
  dist_status_t all_gather_to(buffer<const T> in, const buffer_list<T> &outs, const options &o, dist_work_t **w) const {
    const auto counts = units<T>(outs.counts);
    return with_options(o, [&](const dist_call_options_t *c) {
      return dist_all_gather_v(group_, in.data, outs.data.data(), counts.data(), wire<T>::dtype, c, w);
    });
  }

  template <class T>
  dist_status_t all_gather_at(buffer<const T> in, buffer<T> out, const std::vector<std::size_t> &counts,
                              const std::vector<std::size_t> &displacements, const options &o, dist_work_t **w) const {
    const auto n = units<T>(counts);
    const auto at = units<T>(displacements);
    return with_options(o, [&](const dist_call_options_t *c) {
      return dist_all_gather_v_at(group_, in.data, out.data, n.data(), at.empty() ? nullptr : at.data(),
                                  wire<T>::dtype, c, w);
    });
  }

  template <class T>
  dist_status_t gather_to(buffer<const T> in, const buffer_list<T> &outs, int root, const options &o,
                          dist_work_t **w) const {
    const auto counts = units<T>(outs.counts);
    return with_options(o, [&](const dist_call_options_t *c) {
      return dist_gather_v(group_, in.data, in.size * wire<T>::units, outs.data.data(), counts.data(), wire<T>::dtype,
                           root, c, w);
    });
  }

  template <class T>
  dist_status_t scatter_from(const buffer_list<const T> &ins, buffer<T> out, int root, const options &o,
                             dist_work_t **w) const {
    const auto counts = units<T>(ins.counts);
    return with_options(o, [&](const dist_call_options_t *c) {
      return dist_scatter_v(group_, ins.data.data(), counts.data(), out.data, out.size * wire<T>::units,
                            wire<T>::dtype, root, c, w);
    });
  }

  template <class T, class O>
  dist_status_t reduce_from(const buffer_list<const T> &ins, buffer<T> out, const O &operation, const options &o,
                            dist_work_t **w) const {
    const reduction_codes codes = reduction<T>(operation);
    return with_options(o, operation, [&](const dist_call_options_t *c) {
      return dist_reduce_scatter_v(group_, ins.data.data(), ins.counts.data(), out.data, codes.dtype, codes.op, c, w);
    });
  }

  template <class T>
  dist_status_t exchange_v(const buffer_list<const T> &ins, const buffer_list<T> &outs, const options &o,
                           dist_work_t **w) const {
    const auto in_counts = units<T>(ins.counts);
    const auto out_counts = units<T>(outs.counts);
    return with_options(o, [&](const dist_call_options_t *c) {
      return dist_all_to_all_v(group_, ins.data.data(), in_counts.data(), outs.data.data(), out_counts.data(),
                               wire<T>::dtype, c, w);
    });
  }

  template <class R>
  static std::size_t length(R &range) {
    return static_cast<std::size_t>(std::distance(std::begin(range), std::end(range)));
  }

  /// One buffer for each rank.
  template <class R>
  size_check one_each(const char *name, R &range) const {
    return {name, length(range), ranks()};
  }

  template <class A, class B>
  size_check both_each(const char *name, A &a, B &b) const {
    const size_check first = one_each(name, a);
    return first.ok() ? one_each(name, b) : first;
  }

  template <class R>
  size_check root_has_all(const char *name, int root, R &range) const {
    return rank() == root ? one_each(name, range) : size_check{};
  }

  /// One buffer for each rank, and this rank's has a given size.
  template <class R>
  size_check own_fits(const char *name, R &ins, std::size_t size) const {
    const size_check all = one_each(name, ins);
    return all.ok() ? size_check{name, source(*std::next(std::begin(ins), rank())).size, size} : all;
  }

  /// One count and, if any, one displacement for each rank, and a buffer that has all blocks.
  size_check fits(const char *name, std::size_t size, const std::vector<std::size_t> &counts,
                  const std::vector<std::size_t> &displacements) const {
    if (counts.size() != ranks()) return {name, counts.size(), ranks()};
    if (!displacements.empty() && displacements.size() != ranks()) return {name, displacements.size(), ranks()};
    std::size_t end = 0;
    std::size_t next = 0;
    for (std::size_t i = 0; i < counts.size(); ++i) {
      next = (displacements.empty() ? next : displacements[i]) + counts[i];
      if (next > end) end = next;
    }
    return {name, size < end ? size : end, end};
  }
};

}  // namespace detail
DIST_HPP_END

#endif  // DIST_VECTORS_HPP
