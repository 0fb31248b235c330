// Messages between two ranks of a group.
#ifndef DIST_MESSAGES_HPP
#define DIST_MESSAGES_HPP

#include "lists.hpp"

#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

DIST_HPP_BEGIN

/// In place of a sender: any rank.
inline constexpr int any_source = DIST_ANY_SOURCE;
/// In place of a tag: any tag.
inline constexpr int any_tag = DIST_ANY_TAG;

/// Where a message came from, and how long it is.
struct recv_status {
  int source;
  int tag;
  /// The number of elements of `dtype`. A type that the library does not know travels as bytes.
  std::size_t count;
  dist_dtype_t dtype;
};

/// A received byte string.
struct received_bytes {
  blob bytes;
  recv_status status;
};

namespace detail {

inline recv_status to_status(const dist_recv_status_t &c) noexcept { return {c.source, c.tag, c.count, c.dtype}; }

template <class E>
outcome<E, recv_status> finish_receive(dist_status_t status, const dist_recv_status_t &received) {
  return finish<E>(status, to_status(received));
}

}  // namespace detail

/// A message that a probe has found. One receive consumes it; a message that was not received returns to its place.
class message {
 public:
  message(dist_message_t *handle, const recv_status &status) noexcept : handle_(handle), status_(status) {}
  message(message &&other) noexcept : handle_(std::exchange(other.handle_, nullptr)), status_(other.status_) {}
  message &operator=(message &&other) noexcept {
    std::swap(handle_, other.handle_);
    std::swap(status_, other.status_);
    return *this;
  }
  ~message() { dist_message_release(handle_); }

  const recv_status &status() const noexcept { return status_; }

  /// Receives the message into a buffer that is long enough.
  template <class R, class E = detail::default_errors>
  detail::outcome<E, recv_status> receive(R &&into, const options &o = {}, E = E{}) {
    dist_recv_status_t received = DIST_RECV_STATUS_INIT;
    const dist_status_t status = receive_into(detail::target(into), &received, o, nullptr);
    return detail::finish_receive<E>(status, received);
  }

  template <class R, class E = detail::default_errors>
  [[nodiscard]] auto receive_async(R &&into, const options &o = {}, E = E{}) {
    return detail::issue<E>({}, [&](dist_work_t **w, auto &b) {
      return receive_into(detail::target(b), nullptr, o, w);
    }, std::forward<R>(into));
  }

 private:
  template <class T>
  dist_status_t receive_into(buffer<T> b, dist_recv_status_t *received, const options &o, dist_work_t **w) {
    using wire = detail::wire<T>;
    const dist_status_t status = detail::with_options(o, [&](const dist_call_options_t *c) {
      return dist_recv_message(handle_, b.data, b.size * wire::units, wire::dtype, received, c, w);
    });
    // A call that was refused with nothing done leaves the handle valid; releasing a consumed one has no effect.
    if (status == DIST_OK) handle_ = nullptr;
    return status;
  }

  dist_message_t *handle_;
  recv_status status_;
};

namespace detail {

/// Messages: a receive takes the first one from its sender with its tag.
class messages : public list_collectives {
 public:
  /// Sends elements to a rank.
  template <class R, class E = default_errors, class = require<is_buffer<const R>>>
  [[gnu::always_inline]] outcome<E, void> send(const R &elements, int peer, int tag = 0, const options &o = {}, E = E{}) const {
    return finish<E>(send_with(source(elements), peer, tag, o, nullptr));
  }

  template <class R, class E = default_errors, class = require<is_buffer<R>>>
  [[nodiscard]] auto send_async(R &&elements, int peer, int tag = 0, const options &o = {}, E = E{}) const {
    return issue<E>({}, [&](dist_work_t **w, auto &b) { return send_with(source(b), peer, tag, o, w); },
                    std::forward<R>(elements));
  }

  /// Receives at most as many elements as the buffer has. The status says how many came, and from whom.
  template <class R, class E = default_errors, class = require<is_buffer<R>>>
  [[gnu::always_inline]] outcome<E, recv_status> recv(R &&into, int peer = any_source, int tag = any_tag, const options &o = {}, E = E{}) const {
    dist_recv_status_t received = DIST_RECV_STATUS_INIT;
    return finish_receive<E>(recv_with(target(into), peer, tag, &received, o, nullptr), received);
  }

  /// The work has the status: source(), tag() and received_count().
  template <class R, class E = default_errors, class = require<is_buffer<R>>>
  [[nodiscard]] auto recv_async(R &&into, int peer = any_source, int tag = any_tag, const options &o = {}, E = E{}) const {
    return issue<E>({}, [&](dist_work_t **w, auto &b) { return recv_with(target(b), peer, tag, nullptr, o, w); },
                    std::forward<R>(into));
  }

  /// Receives one value.
  template <class T, class E = default_errors>
  [[nodiscard]] outcome<E, T> recv_value(int peer = any_source, int tag = any_tag, const options &o = {}, E = E{}) const {
    T value{};
    const dist_status_t status = recv_with(target(value), peer, tag, nullptr, o, nullptr);
    return finish<E>(status, std::move(value));
  }

  /// Sends to one rank and receives from another at the same time. Both buffers may be the same.
  template <class Out, class In, class E = default_errors, class = require<is_buffer<const Out>, is_buffer<In>>>
  outcome<E, recv_status> sendrecv(const Out &out, int dest, In &&in, int from, int send_tag = 0, int recv_tag = any_tag,
                                   const options &o = {}, E = E{}) const {
    dist_recv_status_t received = DIST_RECV_STATUS_INIT;
    const exchange_of ends{dest, send_tag, from, recv_tag};
    return finish_receive<E>(sendrecv_with(source(out), target(in), ends, &received, o, nullptr), received);
  }

  template <class Out, class In, class E = default_errors, class = require<is_buffer<Out>, is_buffer<In>>>
  [[nodiscard]] auto sendrecv_async(Out &&out, int dest, In &&in, int from, int send_tag = 0, int recv_tag = any_tag,
                                    const options &o = {}, E = E{}) const {
    return issue_pair<E>({}, [&](dist_work_t **w, auto &s, auto &r) {
      return sendrecv_with(source(s), target(r), {dest, send_tag, from, recv_tag}, nullptr, o, w);
    }, std::forward<Out>(out), std::forward<In>(in));
  }

  /// Sends bytes of any length.
  template <class E = default_errors>
  outcome<E, void> send_bytes(byte_view bytes, int peer, int tag = 0, const options &o = {}, E = E{}) const {
    return finish<E>(send_bytes_with(bytes, peer, tag, o, nullptr));
  }

  /// The bytes are lent until the work is done.
  template <class E = default_errors>
  [[nodiscard]] outcome<E, work> send_bytes_async(byte_view bytes, int peer, int tag = 0, const options &o = {},
                                                  E = E{}) const {
    dist_work_t *handle = nullptr;
    const dist_status_t status = send_bytes_with(bytes, peer, tag, o, &handle);
    return finish<E>(status, work(handle));
  }

  /// Receives bytes of any length.
  template <class E = default_errors>
  [[nodiscard]] outcome<E, received_bytes> recv_bytes(int peer = any_source, int tag = any_tag, const options &o = {},
                                                     E = E{}) const {
    dist_recv_status_t received = DIST_RECV_STATUS_INIT;
    blob out;
    const dist_status_t status = with_options(o, [&](const dist_call_options_t *c) {
      return dist_recv_bytes(group_, out.out(), 0, peer, tag, &received, c, nullptr);
    });
    return finish<E>(status, received_bytes{std::move(out), to_status(received)});
  }

  template <class E = default_errors>
  outcome<E, owning_work<blob>> recv_bytes_async(int peer = any_source, int tag = any_tag, const options &o = {},
                                                 E = E{}) const {
    return start_blob<E>(o, [&](blob &out, const dist_call_options_t *c, dist_work_t **w) {
      return dist_recv_bytes(group_, out.out(), 0, peer, tag, nullptr, c, w);
    });
  }

  /// Waits for a message and takes it out of matching, so that only the returned object receives it.
  template <class E = default_errors>
  [[nodiscard]] outcome<E, message> probe(int peer = any_source, int tag = any_tag, const options &o = {}, E = E{}) const {
    dist_recv_status_t found = DIST_RECV_STATUS_INIT;
    dist_message_t *handle = nullptr;
    const dist_status_t status = with_options(o, [&](const dist_call_options_t *c) {
      return dist_probe(group_, peer, tag, &found, c, &handle);
    });
    return finish<E>(status, message(handle, to_status(found)));
  }

  /// As probe, without waiting.
  template <class E = default_errors>
  [[nodiscard]] outcome<E, std::optional<message>> try_probe(int peer = any_source, int tag = any_tag, E = E{}) const {
    dist_recv_status_t found = DIST_RECV_STATUS_INIT;
    dist_message_t *handle = nullptr;
    dist_call_options_t once = DIST_CALL_OPTIONS_INIT;
    once.timeout_ms = DIST_NO_WAIT;
    const dist_status_t status = dist_probe(group_, peer, tag, &found, &once, &handle);
    if (status == DIST_IN_PROGRESS) return std::optional<message>();
    return finish<E>(status, std::optional<message>(message(handle, to_status(found))));
  }

  /// Describes the message that a receive would take, without taking it; nothing if there is none. Does not wait.
  template <class E = default_errors>
  [[nodiscard]] outcome<E, std::optional<recv_status>> peek(int peer = any_source, int tag = any_tag, E = E{}) const {
    dist_recv_status_t found = DIST_RECV_STATUS_INIT;
    dist_call_options_t once = DIST_CALL_OPTIONS_INIT;
    once.timeout_ms = DIST_NO_WAIT;
    const dist_status_t status = dist_probe(group_, peer, tag, &found, &once, nullptr);
    if (status == DIST_IN_PROGRESS) return std::optional<recv_status>();
    return finish<E>(status, std::optional<recv_status>(to_status(found)));
  }

 protected:
  using list_collectives::list_collectives;

 private:
  struct exchange_of {
    int dest, send_tag, from, recv_tag;
  };

  template <class T>
  [[gnu::always_inline]] dist_status_t send_with(buffer<const T> b, int peer, int tag, const options &o, dist_work_t **w) const {
    return with_options(o, [&](const dist_call_options_t *c) {
      return dist_send(group_, b.data, b.size * wire<T>::units, wire<T>::dtype, peer, tag, c, w);
    });
  }

  dist_status_t send_bytes_with(byte_view b, int peer, int tag, const options &o, dist_work_t **w) const {
    return with_options(o, [&](const dist_call_options_t *c) {
      return dist_send_bytes(group_, b.data(), b.size(), peer, tag, c, w);
    });
  }

  template <class T>
  [[gnu::always_inline]] dist_status_t recv_with(buffer<T> b, int peer, int tag, dist_recv_status_t *received, const options &o,
                          dist_work_t **w) const {
    return with_options(o, [&](const dist_call_options_t *c) {
      return dist_recv(group_, b.data, b.size * wire<T>::units, wire<T>::dtype, peer, tag, received, c, w);
    });
  }

  template <class T>
  dist_status_t sendrecv_with(buffer<const T> out, buffer<T> in, const exchange_of &ends, dist_recv_status_t *received,
                              const options &o, dist_work_t **w) const {
    return with_options(o, [&](const dist_call_options_t *c) {
      return dist_sendrecv(group_, out.data, out.size * wire<T>::units, ends.dest, ends.send_tag, in.data,
                           in.size * wire<T>::units, ends.from, ends.recv_tag, wire<T>::dtype, received, c, w);
    });
  }
};

}  // namespace detail
DIST_HPP_END

#endif  // DIST_MESSAGES_HPP
