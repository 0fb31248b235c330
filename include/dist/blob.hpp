// Byte strings that the library made.
#ifndef DIST_BLOB_HPP
#define DIST_BLOB_HPP

#include "buffer.hpp"
#include "error.hpp"

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

DIST_HPP_BEGIN

/// A list of byte strings in memory of the library. An operation on bytes returns one, a gather one for each rank.
class blob {
 public:
  blob() noexcept = default;
  explicit blob(dist_blob_t *handle) noexcept : handle_(handle) {}
  blob(blob &&other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  blob &operator=(blob &&other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~blob() { dist_blob_release(handle_); }

  /// The number of strings.
  std::size_t size() const noexcept { return dist_blob_count(handle_); }
  bool empty() const noexcept { return size() == 0; }

  /// One string, valid as long as the blob. Empty if there is no such string.
  std::string_view operator[](std::size_t index) const noexcept {
    const void *data = nullptr;
    std::size_t bytes = 0;
    if (dist_blob_data(handle_, index, &data, &bytes) != DIST_OK) return {};
    return {static_cast<const char *>(data), bytes};
  }

  /// The first string, which is the only one of most operations.
  std::string_view view() const noexcept { return (*this)[0]; }
  std::string str() const { return std::string(view()); }

  /// Copies of all strings.
  std::vector<std::string> strings() const {
    std::vector<std::string> all(size());
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = (*this)[i];
    return all;
  }

  dist_blob_t *get() const noexcept { return handle_; }

  /// Where a function of dist.h writes its blob. The blob must be empty.
  dist_blob_t **out() noexcept { return &handle_; }

 private:
  dist_blob_t *handle_ = nullptr;
};

namespace detail {

/// Ends a call that writes a blob of one text, and returns the text.
template <class E>
outcome<E, std::string> finish_text(dist_status_t status, const blob &text) {
  return finish<E>(status, text.str());
}

}  // namespace detail

DIST_HPP_END

#endif  // DIST_BLOB_HPP
