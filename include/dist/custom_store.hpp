// Stores that a program implements as a class.
#ifndef DIST_CUSTOM_STORE_HPP
#define DIST_CUSTOM_STORE_HPP

#include "store.hpp"

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

DIST_HPP_BEGIN
namespace detail {

/// Calls a function of the program for the library: an exception becomes a status, and does not leave it.
template <class F>
dist_status_t guarded(F function) noexcept {
#if DIST_HPP_HAS_EXCEPTIONS
  try {
    function();
    return DIST_OK;
  } catch (const std::system_error &failed) {
    return failed.code().category() == category() ? failed.code().value() : DIST_ERR_BACKEND;
  } catch (const std::bad_alloc &) {
    return DIST_ERR_OUT_OF_MEMORY;
  } catch (...) {
    return DIST_ERR_BACKEND;
  }
#else
  function();
  return DIST_OK;
#endif
}

template <class S>
using has_compare_set = decltype(&S::compare_set);
template <class S>
using has_append = decltype(&S::append);
template <class S>
using has_size = decltype(&S::size);
template <class S>
using has_keys = decltype(&S::keys);
template <class S>
using has_queue = decltype(&S::push, &S::pop, &S::queue_size);
template <class S>
using has_clone = decltype(std::unique_ptr<S>(std::declval<S &>().clone(std::chrono::milliseconds())));
template <class S>
using has_interrupt = decltype(std::declval<S &>().interrupt());

/// The functions of dist.h for a class of the program.
template <class S>
struct store_functions {
  using ms = std::chrono::milliseconds;

  static S &self(void *user) noexcept { return *static_cast<S *>(user); }
  static std::string_view text(const void *data, std::size_t bytes) noexcept {
    return {static_cast<const char *>(data), bytes};
  }
  static std::vector<std::string> texts(const char *const *keys, std::size_t n) { return {keys, keys + n}; }
  static void give(dist_store_sink_fn sink, void *arg, std::string_view value) { sink(arg, value.data(), value.size()); }

  static dist_status_t set(void *user, const char *key, const void *value, std::size_t bytes, std::int64_t t) noexcept {
    return guarded([&] { self(user).set(key, text(value, bytes), ms(t)); });
  }
  static dist_status_t get(void *user, const char *key, dist_store_sink_fn sink, void *arg, std::int64_t t) noexcept {
    return guarded([&] { give(sink, arg, self(user).get(key, ms(t))); });
  }
  static dist_status_t add(void *user, const char *key, std::int64_t amount, std::int64_t *sum, std::int64_t t) noexcept {
    return guarded([&] { *sum = self(user).add(key, amount, ms(t)); });
  }
  static dist_status_t wait(void *user, const char *const *keys, std::size_t n, std::int64_t t) noexcept {
    return guarded([&] { self(user).wait(texts(keys, n), ms(t)); });
  }
  static dist_status_t check(void *user, const char *const *keys, std::size_t n, std::int32_t *all, std::int64_t t) noexcept {
    return guarded([&] { *all = self(user).contains(texts(keys, n), ms(t)) ? 1 : 0; });
  }
  static dist_status_t erase(void *user, const char *key, std::int32_t *erased, std::int64_t t) noexcept {
    return guarded([&] { *erased = self(user).erase(key, ms(t)) ? 1 : 0; });
  }
  static void destroy(void *user) noexcept { delete static_cast<S *>(user); }
  static dist_status_t compare_set(void *user, const char *key, const void *expected, std::size_t expected_bytes,
                                   const void *desired, std::size_t desired_bytes, dist_store_sink_fn sink, void *arg,
                                   std::int64_t t) noexcept {
    return guarded([&] {
      const std::string_view before = text(expected, expected_bytes), after = text(desired, desired_bytes);
      give(sink, arg, self(user).compare_set(key, before, after, ms(t)));
    });
  }
  static dist_status_t append(void *user, const char *key, const void *value, std::size_t bytes, std::int64_t t) noexcept {
    return guarded([&] { self(user).append(key, text(value, bytes), ms(t)); });
  }
  static dist_status_t size(void *user, std::int64_t *count, std::int64_t t) noexcept {
    return guarded([&] { *count = self(user).size(ms(t)); });
  }
  static dist_status_t keys(void *user, dist_store_sink_fn sink, void *arg, std::int64_t t) noexcept {
    return guarded([&] {
      for (const std::string &key : self(user).keys(ms(t))) give(sink, arg, key);
    });
  }
  static dist_status_t push(void *user, const char *queue, const void *item, std::size_t bytes, std::int64_t t) noexcept {
    return guarded([&] { self(user).push(queue, text(item, bytes), ms(t)); });
  }
  static dist_status_t pop(void *user, const char *queue, std::int32_t block, dist_store_sink_fn sink, void *arg,
                           std::int64_t t) noexcept {
    std::optional<std::string> item;
    const dist_status_t status = guarded([&] { item = self(user).pop(queue, block != 0, ms(t)); });
    if (status != DIST_OK) return status;
    if (!item) return DIST_ERR_QUEUE_EMPTY;
    give(sink, arg, *item);
    return DIST_OK;
  }
  static dist_status_t queue_size(void *user, const char *queue, std::int64_t *length, std::int64_t t) noexcept {
    return guarded([&] { *length = self(user).queue_size(queue, ms(t)); });
  }

  static dist_status_t clone(void *user, void **copy, std::int64_t t) noexcept {
    return guarded([&] { *copy = std::unique_ptr<S>(self(user).clone(ms(t))).release(); });
  }
  static void interrupt(void *user) noexcept { self(user).interrupt(); }

  static dist_store_vtable_t table() noexcept {
    dist_store_vtable_t c = DIST_STORE_VTABLE_INIT;
    c.set = set;
    c.get = get;
    c.add = add;
    c.wait = wait;
    c.check = check;
    c.delete_key = erase;
    c.destroy = destroy;
    if constexpr (has<has_compare_set, S>) c.compare_set = compare_set;
    if constexpr (has<has_append, S>) c.append = append;
    if constexpr (has<has_size, S>) c.num_keys = size;
    if constexpr (has<has_keys, S>) c.list_keys = keys;
    if constexpr (has<has_queue, S>) {
      c.queue_push = push;
      c.queue_pop = pop;
      c.queue_len = queue_size;
    }
    if constexpr (has<has_clone, S>) c.clone = clone;
    if constexpr (has<has_interrupt, S>) c.interrupt = interrupt;
    return c;
  }
};

}  // namespace detail

/// Makes a store of an object of the program. Any thread may call its functions. The store owns the object.
/// The object has these functions:
///
///     void set(std::string_view key, std::string_view value, std::chrono::milliseconds limit);
///     std::string get(std::string_view key, std::chrono::milliseconds limit);           // waits for the key
///     std::int64_t add(std::string_view key, std::int64_t amount, std::chrono::milliseconds limit);
///     void wait(const std::vector<std::string> &keys, std::chrono::milliseconds limit);
///     bool contains(const std::vector<std::string> &keys, std::chrono::milliseconds limit);
///     bool erase(std::string_view key, std::chrono::milliseconds limit);
///
/// and optionally
///
///     std::string compare_set(std::string_view key, std::string_view expected, std::string_view desired, milliseconds);
///     void append(std::string_view key, std::string_view value, milliseconds);
///     std::int64_t size(milliseconds);
///     std::vector<std::string> keys(milliseconds);
///     void push(std::string_view queue, std::string_view item, milliseconds);
///     std::optional<std::string> pop(std::string_view queue, bool block, milliseconds);  // nothing: the queue is empty
///     std::int64_t queue_size(std::string_view queue, milliseconds);
///     std::unique_ptr<S> clone(milliseconds);  // a second client, whose calls do not wait for those of the first one
///     void interrupt() noexcept;               // ends the wait of another thread with errc::aborted, or the next one
///
/// They report failures as exceptions: a std::system_error with a code of dist::errc keeps its status, such as
/// errc::timeout; any other is errc::backend. A program without exceptions uses dist_store_custom_create instead.
template <class S, class E = detail::default_errors>
[[nodiscard]] detail::outcome<E, store> make_store(std::unique_ptr<S> implementation, E = E{}) {
  const dist_store_vtable_t functions = detail::store_functions<S>::table();
  dist_store_t *handle = nullptr;
  const dist_status_t status = dist_store_custom_create(&functions, implementation.get(), &handle);
  if (status == DIST_OK) static_cast<void>(implementation.release());
  return detail::finish<E>(status, store(handle));
}

DIST_HPP_END

#endif  // DIST_CUSTOM_STORE_HPP
