// The sampler: the share of a data set that each rank trains on.
#ifndef DIST_SAMPLER_HPP
#define DIST_SAMPLER_HPP

#include "group.hpp"

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

DIST_HPP_BEGIN

/// Options of a sampler.
struct sampler_options {
  /// Shuffles the indices, differently in each epoch.
  bool shuffle = true;
  /// Drops the last samples if the ranks cannot share them evenly; else samples from the beginning are used twice.
  bool drop_last = false;
  /// The seed of the shuffle, the same on all ranks.
  std::uint64_t seed = 0;
};

/// The indices of one rank, epoch by epoch: those of PyTorch's DistributedSampler, index for index.
///
///     dist::sampler sampler(world, samples);
///     for (std::uint64_t epoch = 0; epoch < epochs; ++epoch) {
///       sampler.set_epoch(epoch);
///       for (auto batch = sampler.next(64); !batch.empty(); batch = sampler.next(64)) train(batch);
///     }
class sampler {
 public:
#if DIST_HPP_HAS_EXCEPTIONS
  sampler(group_ref group, std::uint64_t dataset_size, const sampler_options &o = {})
      : sampler(make(group, dataset_size, o)) {}
  /// The share of one rank of several, without a group.
  sampler(int replicas, int rank, std::uint64_t dataset_size, const sampler_options &o = {})
      : sampler(make(replicas, rank, dataset_size, o)) {}
#endif

  /// As the constructors. Failures are reported as by every other function.
  template <class E = detail::default_errors>
  [[nodiscard]] static detail::outcome<E, sampler> make(group_ref group, std::uint64_t dataset_size,
                                                       const sampler_options &o = {}, E = E{}) {
    return created<E>(group.get(), dataset_size, c_options(o));
  }
  template <class E = detail::default_errors>
  [[nodiscard]] static detail::outcome<E, sampler> make(int replicas, int rank, std::uint64_t dataset_size,
                                                       const sampler_options &o = {}, E = E{}) {
    dist_sampler_options_t c = c_options(o);
    c.fields = DIST_FIELD_RANK;
    c.num_replicas = replicas;
    c.rank = rank;
    return created<E>(nullptr, dataset_size, c);
  }

  sampler(sampler &&other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  sampler &operator=(sampler &&other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~sampler() { dist_sampler_release(handle_); }

  /// Begins an epoch.
  template <class E = detail::default_errors>
  detail::outcome<E, void> set_epoch(std::uint64_t epoch, E = E{}) {
    return detail::finish<E>(dist_sampler_set_epoch(handle_, epoch));
  }

  /// Takes the next indices of the epoch, at most `most`; none at its end.
  template <class E = detail::default_errors>
  [[nodiscard]] detail::outcome<E, std::vector<std::uint64_t>> next(std::size_t most, E = E{}) {
    const std::uint64_t left = size() - position();
    std::vector<std::uint64_t> indices(most < left ? most : static_cast<std::size_t>(left));
    std::size_t n = 0;
    const dist_status_t status = dist_sampler_next(handle_, indices.data(), indices.size(), &n);
    indices.resize(n);
    return detail::finish<E>(status, std::move(indices));
  }

  /// The number of indices of this rank in an epoch, the same on all ranks.
  std::uint64_t size() const noexcept { return dist_sampler_len(handle_); }

  /// The number of indices that were taken in this epoch, for a checkpoint.
  std::uint64_t position() const noexcept { return dist_sampler_position(handle_); }

  /// Goes to a position of the epoch.
  template <class E = detail::default_errors>
  detail::outcome<E, void> seek(std::uint64_t position, E = E{}) {
    return detail::finish<E>(dist_sampler_seek(handle_, position));
  }

  dist_sampler_t *get() const noexcept { return handle_; }

 private:
  explicit sampler(dist_sampler_t *handle) noexcept : handle_(handle) {}

  static dist_sampler_options_t c_options(const sampler_options &o) noexcept {
    dist_sampler_options_t c = DIST_SAMPLER_OPTIONS_INIT;
    c.seed = o.seed;
    c.flags = (o.shuffle ? 0U : DIST_SAMPLER_IN_ORDER) | (o.drop_last ? DIST_SAMPLER_DROP_LAST : 0U);
    return c;
  }

  template <class E>
  static detail::outcome<E, sampler> created(dist_group_t *group, std::uint64_t dataset_size,
                                             const dist_sampler_options_t &c) {
    dist_sampler_t *handle = nullptr;
    const dist_status_t status = dist_sampler_create(group, dataset_size, &c, &handle);
    return detail::finish<E>(status, sampler(handle));
  }

  dist_sampler_t *handle_;
};

DIST_HPP_END

#endif  // DIST_SAMPLER_HPP
