// Memory of a group: an allocator and a memory resource whose memory other ranks reach without copies.
#ifndef DIST_MEMORY_HPP
#define DIST_MEMORY_HPP

#include "group.hpp"

#include <cstddef>
#include <limits>
#include <new>
#include <utility>
#include <vector>
#if __has_include(<memory_resource>)
#include <memory_resource>
#endif

DIST_HPP_BEGIN

/// Allocates memory of a group's back end: `std::vector<float, dist::allocator<float>> v(n, dist::allocator<float>(world))`.
///
/// Operations on such memory need no copy where ranks share a host. The memory may outlive the group.
/// An allocation that fails throws std::bad_alloc; without exceptions it terminates the program.
template <class T>
class allocator {
 public:
  using value_type = T;

  explicit allocator(group_ref group) noexcept : group_(group) {}
  template <class U>
  allocator(const allocator<U> &other) noexcept : group_(other.group()) {}

  T *allocate(std::size_t n) {
    void *memory = nullptr;
    const bool fits = n <= std::numeric_limits<std::size_t>::max() / sizeof(T);
    // Memory of the library begins at a multiple of 64 bytes.
    static_assert(alignof(T) <= 64, "the library aligns memory to 64 bytes");
    if (!fits || dist_mem_alloc(group_.get(), n * sizeof(T), DIST_DEVICE_HOST, &memory) != DIST_OK) {
#if DIST_HPP_HAS_EXCEPTIONS
      throw std::bad_alloc();
#else
      std::terminate();
#endif
    }
    return static_cast<T *>(memory);
  }
  void deallocate(T *memory, std::size_t) noexcept { dist_mem_free(memory); }

  group_ref group() const noexcept { return group_; }

  friend bool operator==(const allocator &a, const allocator &b) noexcept { return a.group_ == b.group_; }
  friend bool operator!=(const allocator &a, const allocator &b) noexcept { return a.group_ != b.group_; }

 private:
  group_ref group_;
};

/// A std::vector in memory of a group.
template <class T>
using vector = std::vector<T, allocator<T>>;

#if defined(__cpp_lib_memory_resource)
/// The same for containers of std::pmr.
class memory_resource : public std::pmr::memory_resource {
 public:
  explicit memory_resource(group_ref group) noexcept : memory_(group) {}

 private:
  void *do_allocate(std::size_t bytes, std::size_t alignment) override {
    if (alignment > 64) {
#if DIST_HPP_HAS_EXCEPTIONS
      throw std::bad_alloc();
#else
      std::terminate();
#endif
    }
    return memory_.allocate(bytes);
  }
  void do_deallocate(void *memory, std::size_t bytes, std::size_t) override {
    memory_.deallocate(static_cast<std::byte *>(memory), bytes);
  }
  bool do_is_equal(const std::pmr::memory_resource &other) const noexcept override { return this == &other; }

  allocator<std::byte> memory_;
};
#endif

/// A registration of memory of the program with a group, until the end of the scope.
class registration {
 public:
  registration(registration &&other) noexcept : group_(other.group_), memory_(std::exchange(other.memory_, nullptr)) {}
  registration &operator=(registration &&) = delete;
  ~registration() {
    if (memory_ != nullptr) static_cast<void>(dist_mem_deregister(group_.get(), memory_) == DIST_OK);
  }

  /// Registers a buffer that the group's calls will use often.
  template <class R, class E = detail::default_errors>
  [[nodiscard]] static detail::outcome<E, registration> of(group_ref group, R &object, E = E{}) {
    const auto bytes = bytes_of(detail::target(object));
    const dist_status_t status = dist_mem_register(group.get(), bytes.data, bytes.size);
    return detail::finish<E>(status, registration(group, status == DIST_OK ? bytes.data : nullptr));
  }

 private:
  registration(group_ref group, void *memory) noexcept : group_(group), memory_(memory) {}

  group_ref group_;
  void *memory_;
};

DIST_HPP_END

#endif  // DIST_MEMORY_HPP
