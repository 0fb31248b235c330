// The shard: the state of an optimizer, split over the ranks of a reducer (ZeRO-1 and ZeRO-2).
#ifndef DIST_SHARD_HPP
#define DIST_SHARD_HPP

#include "reducer.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

DIST_HPP_BEGIN

/// Options of a shard: the same on all ranks, except `timeout`.
struct shard_options {
  /// The names of the optimizer's states, at most 64: "m" and "v" of Adam, for example.
  std::vector<std::string> states{};
  /// The number of ranks that update each element. With 2, the death of a rank loses no state. Not above 1 with
  /// reducer_options::sharded.
  int copies = 1;
  /// The time-out of each operation; the default is the group's.
  time_limit timeout{};
};

/// Elements of one parameter that this rank updates.
class shard_range {
 public:
  /// The index of the parameter.
  std::size_t param;
  /// The first element in the parameter, and the number of elements.
  std::size_t begin;
  std::size_t count;
  /// The bucket that has their gradients: bucket::index of reducer::on_bucket.
  std::size_t bucket;
  /// The first element of the range in each state.
  std::size_t offset;

  /// The values of the elements. T is the element type of the parameter; another type is errc::invalid_argument.
  template <class T, class E = detail::default_errors>
  [[nodiscard]] detail::outcome<E, buffer<T>> data(E = E{}) const {
    return place<T, E>(data_, dtype_, "values");
  }
  /// The reduced gradients of the elements, after the end of a step. T is the element type of the gradient; another type is
  /// errc::invalid_argument.
  template <class T, class E = detail::default_errors>
  [[nodiscard]] detail::outcome<E, buffer<T>> grad(E = E{}) const {
    return place<T, E>(grad_, grad_dtype_, "gradients");
  }

 private:
  friend class shard;
  shard_range(const dist_shard_range_t &c, dist_dtype_t dtype, dist_dtype_t grad_dtype) noexcept
      : param(c.param),
        begin(c.begin),
        count(c.count),
        bucket(c.bucket),
        offset(c.offset),
        data_(c.data),
        grad_(c.grad),
        dtype_(dtype),
        grad_dtype_(grad_dtype) {}

  template <class T, class E>
  detail::outcome<E, buffer<T>> place(void *memory, dist_dtype_t dtype, const char *elements) const {
    static_assert(is_reducible_v<T>, "no element type of the library: specialise dist::dtype_of for it");
    if (dtype != dtype_v<T>) {
      return detail::refuse<E, buffer<T>>("dist::shard: the " + std::string(elements) + " of parameter " + std::to_string(param) +
                                          " are " + name_of_dtype(dtype) + ", not " + name_of_dtype(dtype_v<T>));
    }
    return buffer<T>{static_cast<T *>(memory), count};
  }

  void *data_;
  void *grad_;
  dist_dtype_t dtype_;
  dist_dtype_t grad_dtype_;
};

/// Splits the state of an optimizer over the ranks of a reducer. Each rank updates its own elements, and sends them to all ranks.
///
///     dist::shard shard(reducer, {{"m", "v"}});           // the states of Adam
///
/// After each step of the reducer:
///
///     const auto m = shard.state(0), v = shard.state(1);
///     for (const dist::shard_range &range : shard.ranges()) {
///       adam(range.data<float>(), range.grad<float>(), &m[range.offset], &v[range.offset]);
///     }
///     shard.gather();
///
/// Every parameter with a gradient is split by elements, evenly over the ranks. With reducer_options::sharded a rank has the
/// reduced gradients of its own elements only, and half the bytes are sent before the update.
///
/// The reducer must outlive the shard, and keeps its buckets from now on. A reducer has one shard at a time. The object of the
/// reducer may be moved.
///
/// After reducer::regroup, gather() redistributes the states to the ranks of the new group. A rank that joins makes its shard while
/// the other ranks call gather(), and gets its share of the states.
class shard {
 public:
#if DIST_HPP_HAS_EXCEPTIONS
  explicit shard(reducer &of, const shard_options &o = {}) : shard(make(of, o)) {}
#endif

  /// As the constructor. All ranks call it between steps, with the same options. Failures are reported as by every other
  /// function:
  ///
  ///   errc::invalid_argument    inside a step, and if the reducer has a shard
  ///   errc::unsupported         for sparse gradients and device memory
  ///   errc::mismatch            on all ranks, if the options differ
  template <class E = detail::default_errors>
  [[nodiscard]] static detail::outcome<E, shard> make(reducer &of, const shard_options &o = {}, E = E{}) {
    std::vector<const char *> names;
    for (const std::string &each : o.states) names.push_back(each.c_str());
    dist_shard_options_t c = DIST_SHARD_OPTIONS_INIT;
    c.states = names.data();
    c.n_states = names.size();
    c.copies = o.copies;
    c.timeout_ms = o.timeout.ms();
    dist_shard_t *handle = nullptr;
    const dist_status_t status = dist_shard_create(of.get(), &c, &handle);
    return detail::finish<E>(status, shard(handle, of.value_types_, of.grad_types_));
  }

  shard(shard &&other) noexcept
      : handle_(std::exchange(other.handle_, nullptr)),
        value_types_(std::move(other.value_types_)),
        grad_types_(std::move(other.grad_types_)) {}
  shard &operator=(shard &&other) noexcept {
    std::swap(handle_, other.handle_);
    std::swap(value_types_, other.value_types_);
    std::swap(grad_types_, other.grad_types_);
    return *this;
  }
  /// Releases the states, after a gather that runs has ended.
  ~shard() { dist_shard_release(handle_); }

  /// The elements that this rank updates. With `copies` they include copies of other ranks' elements. They stay the same until
  /// gather() has followed reducer::regroup; between these two calls a sharded reducer has none (errc::invalid_argument).
  template <class E = detail::default_errors>
  [[nodiscard]] detail::outcome<E, std::vector<shard_range>> ranges(E = E{}) const {
    std::vector<shard_range> all;
    std::size_t n = 0;
    dist_status_t status = dist_shard_ranges(handle_, nullptr, 0, &n);
    if (status == DIST_OK && n > 0) {
      std::vector<dist_shard_range_t> found(n, DIST_SHARD_RANGE_INIT);
      status = dist_shard_ranges(handle_, found.data(), found.size(), &n);
      for (const dist_shard_range_t &each : found) {
        all.push_back(shard_range(each, value_types_[each.param], grad_types_[each.param]));
      }
    }
    return detail::finish<E>(status, std::move(all));
  }

  /// A state of the elements that this rank updates, range by range (shard_range::offset); zeros at first. `index` is the
  /// position of its name in shard_options::states; another one is errc::invalid_argument. The memory is the shard's, and valid
  /// until gather() has followed reducer::regroup.
  template <class E = detail::default_errors>
  [[nodiscard]] detail::outcome<E, buffer<float>> state(std::size_t index, E = E{}) const {
    buffer<float> values;
    const dist_status_t status = dist_shard_state(handle_, index, &values.data, &values.size);
    return detail::finish<E>(status, values);
  }

  /// Sends the elements that this rank has updated to all ranks, and gets theirs. All ranks call it after their update.
  ///
  /// If it fails because a rank has died, the others call group::shrink, reducer::regroup, and gather() again. The error is
  /// errc::not_found if the states of a rank are lost with it.
  template <class E = detail::default_errors>
  detail::outcome<E, void> gather(E = E{}) {
    return detail::finish<E>(dist_shard_gather(handle_, nullptr));
  }
  /// As gather, in the background: the parameters arrive bucket by bucket, those of the first layers first. The caller does not
  /// touch a parameter until wait(param), or until the work has ended. The call blocks only after reducer::regroup.
  template <class E = detail::default_errors>
  [[nodiscard]] detail::outcome<E, work> gather_async(E = E{}) {
    dist_work_t *made = nullptr;
    const dist_status_t status = dist_shard_gather(handle_, &made);
    return detail::finish<E>(status, work(made));
  }

  /// Waits until gather_async has all elements of a parameter. Returns at once if no gather runs. Any thread may call it.
  /// A parameter that does not exist or has no gradient is errc::invalid_argument; other errors are those of the gather.
  template <class E = detail::default_errors>
  detail::outcome<E, void> wait(std::size_t param, E = E{}) const {
    return detail::finish<E>(dist_shard_wait(handle_, param));
  }

  /// Collects the states of all ranks at one rank, for a checkpoint. All ranks call it. The blob has one byte string at `root`,
  /// and is empty at the others. The byte string does not depend on the number of ranks. It does not have the parameters, which
  /// are on every rank. errc::invalid_argument between reducer::regroup and gather().
  template <class E = detail::default_errors>
  [[nodiscard]] detail::outcome<E, blob> save(int root, E = E{}) const {
    blob bytes;
    const dist_status_t status = dist_shard_save(handle_, root, bytes.out());
    return detail::finish<E>(status, std::move(bytes));
  }

  /// Takes the states of save(), also from a job with another number of ranks. All ranks call it; only `root` passes the bytes.
  /// errc::invalid_argument on all ranks if these are not of save(), or of other parameters or states.
  template <class E = detail::default_errors>
  detail::outcome<E, void> load(byte_view bytes, int root, E = E{}) {
    return detail::finish<E>(dist_shard_load(handle_, bytes.data(), bytes.size(), root));
  }

  dist_shard_t *get() const noexcept { return handle_; }

 private:
  shard(dist_shard_t *handle, std::vector<dist_dtype_t> value_types, std::vector<dist_dtype_t> grad_types) noexcept
      : handle_(handle), value_types_(std::move(value_types)), grad_types_(std::move(grad_types)) {}

  dist_shard_t *handle_;
  /// The element types of each parameter of the reducer.
  std::vector<dist_dtype_t> value_types_;
  std::vector<dist_dtype_t> grad_types_;
};

DIST_HPP_END

#endif  // DIST_SHARD_HPP
