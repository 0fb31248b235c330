// Buffers: what a call reads or writes. Anything contiguous becomes a buffer<T>, found by ADL.
#ifndef DIST_BUFFER_HPP
#define DIST_BUFFER_HPP

#include "types.hpp"

#include <cstddef>
#include <iterator>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>
#if __cplusplus >= 202002L && __has_include(<ranges>)
#include <ranges>
#endif

DIST_HPP_BEGIN

/// Elements in memory of the caller. It is a view and owns nothing.
template <class T>
struct buffer {
  T *data = nullptr;
  std::size_t size = 0;

  constexpr T *begin() const noexcept { return data; }
  constexpr T *end() const noexcept { return data + size; }
  constexpr T &operator[](std::size_t index) const noexcept { return data[index]; }
};

/// The elements of a raw pointer.
template <class T>
constexpr buffer<T> view(T *data, std::size_t size) noexcept {
  return {data, size};
}

/// The bytes of a buffer.
template <class T>
buffer<std::conditional_t<std::is_const_v<T>, const std::byte, std::byte>> bytes_of(buffer<T> elements) noexcept {
  using bytes = std::conditional_t<std::is_const_v<T>, const std::byte, std::byte>;
  return {reinterpret_cast<bytes *>(elements.data), elements.size * sizeof(T)};
}

/// Types that only refer to elements. A temporary of such a type is lent, as an lvalue is.
/// It is open for specialisation.
template <class T>
struct is_view : std::false_type {};
template <class T>
struct is_view<buffer<T>> : std::true_type {};
template <class C, class R>
struct is_view<std::basic_string_view<C, R>> : std::true_type {};

namespace detail {

template <class T>
struct is_buffer_view : std::false_type {};
template <class T>
struct is_buffer_view<buffer<T>> : std::true_type {};

struct op_base;

// No name of the library: as_buffer of the user is found by ADL alone.
void as_buffer();

template <class R>
using adl_buffer = decltype(as_buffer(std::declval<R &>()));
template <class R>
using range_data = decltype(std::declval<R &>().data());
template <class R>
using range_size = decltype(std::declval<R &>().size());
template <class R>
using mdspan_data = decltype(std::declval<R &>().data_handle());
template <class R>
using mdspan_mapping = decltype(std::declval<R &>().mapping().required_span_size());

template <template <class> class Form, class R, class = void>
struct detected : std::false_type {};
template <template <class> class Form, class R>
struct detected<Form, R, std::void_t<Form<R>>> : std::true_type {};
template <template <class> class Form, class R>
inline constexpr bool has = detected<Form, R>::value;

/// Whether a type has the interface of mdspan, and all its elements are contiguous.
template <class R>
constexpr bool is_exhaustive_mdspan() {
  if constexpr (has<mdspan_data, R> && has<mdspan_mapping, R>) {
    return std::is_pointer_v<std::remove_cv_t<std::remove_reference_t<mdspan_data<R>>>> && std::remove_cv_t<R>::is_always_exhaustive();
  } else {
    return false;
  }
}

template <class R>
constexpr bool is_pointer_range() {
  if constexpr (has<range_data, R> && has<range_size, R>) {
    return std::is_pointer_v<range_data<R>>;
  } else {
    return false;
  }
}

/// How a type becomes a buffer.
enum class buffer_form { none, itself, adl, array, range, mdspan, element };

template <class R>
constexpr buffer_form form_of() {
  using T = std::remove_cv_t<R>;
  if constexpr (is_buffer_view<T>::value) {
    return buffer_form::itself;
  } else if constexpr (has<adl_buffer, R>) {
    return buffer_form::adl;
  } else if constexpr (std::is_array_v<T>) {
    return std::rank_v<T> == 1 ? buffer_form::array : buffer_form::none;
  } else if constexpr (is_pointer_range<R>()) {
    return buffer_form::range;
  } else if constexpr (has<mdspan_data, R>) {
    return is_exhaustive_mdspan<R>() ? buffer_form::mdspan : buffer_form::none;
  } else if constexpr (std::is_class_v<T> && (std::is_base_of_v<op_base, T> || is_view<T>::value)) {
    return buffer_form::none;
  } else if constexpr (std::is_pointer_v<T> || std::is_member_pointer_v<T> || std::is_null_pointer_v<T>) {
    return buffer_form::none;
  } else {
    return std::is_trivially_copyable_v<T> && !std::is_empty_v<T> ? buffer_form::element : buffer_form::none;
  }
}

template <class R>
inline constexpr bool is_buffer = form_of<std::remove_reference_t<R>>() != buffer_form::none;

/// The buffer of an object that has one.
template <class R>
constexpr auto to_buffer(R &object) {
  constexpr buffer_form form = form_of<R>();
  static_assert(form != buffer_form::none,
                "not a buffer: pass a contiguous range, an array, a trivially copyable value, dist::view(pointer, size), "
                "or define as_buffer for the type");
  if constexpr (form == buffer_form::itself) {
    return object;
  } else if constexpr (form == buffer_form::adl) {
    return as_buffer(object);
  } else if constexpr (form == buffer_form::array) {
    return view(std::data(object), std::size(object));
  } else if constexpr (form == buffer_form::range) {
    return view(object.data(), static_cast<std::size_t>(object.size()));
  } else if constexpr (form == buffer_form::mdspan) {
    return view(object.data_handle(), static_cast<std::size_t>(object.mapping().required_span_size()));
  } else {
    return view(&object, 1);
  }
}

/// The type of the elements of a buffer, with const.
template <class R>
using element_of = std::remove_pointer_t<decltype(to_buffer(std::declval<std::remove_reference_t<R> &>()).data)>;

/// The type of the elements of a buffer.
template <class R>
using value_of = std::remove_cv_t<element_of<R>>;

/// Elements that have a meaning in another process.
template <class T>
constexpr void require_element() {
  static_assert(std::is_trivially_copyable_v<T>, "the elements are not trivially copyable: another process cannot use them");
  static_assert(!std::is_pointer_v<T> && !is_view<T>::value, "the elements are pointers or views: another process cannot use them");
}

/// The buffer that a call reads.
template <class R>
auto source(R &object) {
  const auto elements = to_buffer(object);
  using T = std::remove_pointer_t<decltype(elements.data)>;
  require_element<std::remove_cv_t<T>>();
  return buffer<const T>{elements.data, elements.size};
}

/// The buffer that a call writes.
template <class R>
auto target(R &object) {
  const auto elements = to_buffer(object);
  using T = std::remove_pointer_t<decltype(elements.data)>;
  static_assert(!std::is_const_v<T>, "the call writes its result there: the buffer must not be const");
  require_element<T>();
  return elements;
}

template <class R>
using range_begin = decltype(std::begin(std::declval<R &>()));

/// Whether a type is a range of buffers, such as std::vector<std::vector<float>>.
template <class R>
constexpr bool is_range_of_buffers() {
  using range = std::remove_reference_t<R>;
  if constexpr (is_buffer_view<std::remove_cv_t<range>>::value) {
    return false;
  } else if constexpr (has<range_begin, range>) {
    using element = std::remove_reference_t<decltype(*std::begin(std::declval<range &>()))>;
    constexpr buffer_form form = form_of<element>();
    return form != buffer_form::none && form != buffer_form::element;
  } else {
    return false;
  }
}

template <class R>
constexpr bool is_borrowed() {
  using T = std::remove_cv_t<std::remove_reference_t<R>>;
#ifdef __cpp_lib_ranges
  if constexpr (std::ranges::range<T>) {
    if (std::ranges::borrowed_range<T> || std::ranges::view<T>) return true;
  }
#endif
  return is_view<T>::value || has<mdspan_data, T>;
}

/// Whether an argument is moved into a work: a temporary that owns its elements.
template <class R>
inline constexpr bool is_moved_in = !std::is_lvalue_reference_v<R> && !is_borrowed<R>();

/// Pointers and counts of a range of buffers, as the functions of dist.h take them.
template <class T>
struct buffer_list {
  using pointer = std::conditional_t<std::is_const_v<T>, const void *, void *>;
  std::vector<pointer> data;
  std::vector<std::size_t> counts;
};

template <class R>
auto sources(R &range) {
  using T = std::remove_pointer_t<decltype(source(*std::begin(range)).data)>;
  buffer_list<T> list;
  for (auto &object : range) {
    const auto elements = source(object);
    list.data.push_back(elements.data);
    list.counts.push_back(elements.size);
  }
  return list;
}

template <class R>
auto targets(R &range) {
  using T = std::remove_pointer_t<decltype(target(*std::begin(range)).data)>;
  buffer_list<T> list;
  for (auto &&object : range) {
    const auto elements = target(object);
    list.data.push_back(elements.data);
    list.counts.push_back(elements.size);
  }
  return list;
}

}  // namespace detail

/// Bytes to send: a text, or the bytes of any buffer. It is a view. An array of char is a text that ends at its first zero.
class byte_view {
 public:
  constexpr byte_view(std::string_view text) noexcept : data_(text.data()), size_(text.size()) {}
  constexpr byte_view(const char *text) noexcept : byte_view(std::string_view(text)) {}
  template <class R, class = std::enable_if_t<detail::is_buffer<const R>>>
  byte_view(const R &object) {
    const auto bytes = bytes_of(detail::source(object));
    data_ = bytes.data;
    size_ = bytes.size;
  }

  constexpr const void *data() const noexcept { return data_; }
  constexpr std::size_t size() const noexcept { return size_; }

 private:
  const void *data_;
  std::size_t size_;
};

template <>
struct is_view<byte_view> : std::true_type {};

DIST_HPP_END

#endif  // DIST_BUFFER_HPP
