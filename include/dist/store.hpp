// Key-value stores, in which processes meet and leave small values for each other.
#ifndef DIST_STORE_HPP
#define DIST_STORE_HPP

#include "blob.hpp"
#include "options.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

DIST_HPP_BEGIN

/// Options of a TCP store. The port 0 of a server takes a free one, which store::port returns.
struct tcp_store_options {
  std::string host = "localhost";
  int port = 0;
  /// This process runs the server, and is its first client.
  bool server = false;
  /// The number of clients; 0 if it is not known.
  int world_size = 0;
  /// A server with a world_size waits until all clients have connected.
  bool wait_for_workers = true;
  /// Stores of this process with the same port share one server.
  bool multi_tenant = false;
  /// A listening socket for the server, which the library then owns.
  std::optional<int> listen_fd{};
  time_limit timeout{};
  /// The address on which the server listens; by default that of the host, "" for all interfaces.
  std::optional<std::string> bind_address{};
  /// What server and clients prove to each other that they know; "" for nothing.
  std::string secret{};
};

/// A store. Any thread may use it. Keys and values are bytes.
class store {
 public:
  explicit store(dist_store_t *handle) noexcept : handle_(handle) {}
  store(store &&other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  store &operator=(store &&other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~store() { dist_store_release(handle_); }

  /// A store over TCP: a server and its clients, as torch's TCPStore.
  template <class E = detail::default_errors>
  [[nodiscard]] static detail::outcome<E, store> tcp(const tcp_store_options &o, E = E{}) {
    dist_store_tcp_options_t c = DIST_STORE_TCP_OPTIONS_INIT;
    c.fields = DIST_FIELD_WAIT_FOR_WORKERS;
    c.host = o.host.c_str();
    c.port = o.port;
    c.is_server = o.server ? 1 : 0;
    c.world_size = o.world_size;
    c.wait_for_workers = o.wait_for_workers ? 1 : 0;
    c.multi_tenant = o.multi_tenant ? 1 : 0;
    if (o.listen_fd) {
      c.fields |= DIST_FIELD_LISTEN_FD;
      c.listen_fd = *o.listen_fd;
    }
    c.timeout_ms = o.timeout.ms();
    c.bind_address = o.bind_address ? o.bind_address->c_str() : nullptr;
    c.secret = o.secret.empty() ? nullptr : o.secret.data();
    c.secret_len_bytes = o.secret.size();
    return made<E>([&](dist_store_t **out) { return dist_store_tcp_create(&c, out); });
  }

  /// A store in a file that all processes reach.
  template <class E = detail::default_errors>
  [[nodiscard]] static detail::outcome<E, store> file(const std::string &path, int world_size,
                                                      const std::string &job_id = {}, time_limit limit = {}, E = E{}) {
    dist_store_file_options_t c = DIST_STORE_FILE_OPTIONS_INIT;
    c.job_id = detail::text_or_null(job_id);
    c.timeout_ms = limit.ms();
    return made<E>([&](dist_store_t **out) { return dist_store_file_create(path.c_str(), world_size, &c, out); });
  }

  /// A store in the memory of this process, for ranks that are threads.
  template <class E = detail::default_errors>
  [[nodiscard]] static detail::outcome<E, store> hash(E = E{}) {
    return made<E>([](dist_store_t **out) { return dist_store_hash_create(out); });
  }

  /// The keys of this store with a prefix. Either store may be destroyed first.
  template <class E = detail::default_errors>
  [[nodiscard]] detail::outcome<E, store> prefixed(std::string_view prefix, E = E{}) const {
    return made<E>([&](dist_store_t **out) { return dist_store_prefix_create(prefix.data(), prefix.size(), handle_, out); });
  }

  /// Another handle of the same store, with a connection and a time-out of its own.
  template <class E = detail::default_errors>
  [[nodiscard]] detail::outcome<E, store> clone(E = E{}) const {
    return made<E>([&](dist_store_t **out) { return dist_store_clone(handle_, out); });
  }

  template <class E = detail::default_errors>
  detail::outcome<E, void> set(std::string_view key, byte_view value, E = E{}) const {
    return detail::finish<E>(dist_store_set(handle_, key.data(), key.size(), value.data(), value.size()));
  }

  /// Waits for a key, and returns its value.
  template <class E = detail::default_errors>
  [[nodiscard]] detail::outcome<E, std::string> get(std::string_view key, E = E{}) const {
    blob value;
    const dist_status_t status = dist_store_get(handle_, key.data(), key.size(), value.out());
    return detail::finish_text<E>(status, value);
  }

  /// Adds to a counter, and returns the sum. A counter that does not exist is 0.
  template <class E = detail::default_errors>
  detail::outcome<E, std::int64_t> add(std::string_view key, std::int64_t amount, E = E{}) const {
    std::int64_t sum_after = 0;
    const dist_status_t status = dist_store_add(handle_, key.data(), key.size(), amount, &sum_after);
    return detail::finish<E>(status, std::move(sum_after));
  }

  /// Stores `desired` if the value is `expected`, and returns the value afterwards.
  template <class E = detail::default_errors>
  detail::outcome<E, std::string> compare_set(std::string_view key, byte_view expected, byte_view desired, E = E{}) const {
    blob value;
    const dist_status_t status = dist_store_compare_set(handle_, key.data(), key.size(), expected.data(), expected.size(),
                                                        desired.data(), desired.size(), value.out());
    return detail::finish_text<E>(status, value);
  }

  template <class E = detail::default_errors>
  detail::outcome<E, void> append(std::string_view key, byte_view value, E = E{}) const {
    return detail::finish<E>(dist_store_append(handle_, key.data(), key.size(), value.data(), value.size()));
  }

  /// Waits until all keys exist.
  template <class E = detail::default_errors>
  detail::outcome<E, void> wait(const std::vector<std::string> &keys, time_limit limit = {}, E = E{}) const {
    const key_list list(keys);
    return detail::finish<E>(dist_store_wait(handle_, list.data.data(), list.sizes.data(), keys.size(), limit.ms()));
  }

  /// Whether all keys exist.
  template <class E = detail::default_errors>
  [[nodiscard]] detail::outcome<E, bool> contains(const std::vector<std::string> &keys, E = E{}) const {
    const key_list list(keys);
    std::int32_t all_present = 0;
    const dist_status_t status = dist_store_check(handle_, list.data.data(), list.sizes.data(), keys.size(), &all_present);
    return detail::finish<E>(status, all_present != 0);
  }

  /// Removes a key. Returns whether it existed.
  template <class E = detail::default_errors>
  detail::outcome<E, bool> erase(std::string_view key, E = E{}) const {
    std::int32_t deleted = 0;
    const dist_status_t status = dist_store_delete_key(handle_, key.data(), key.size(), &deleted);
    return detail::finish<E>(status, deleted != 0);
  }

  template <class E = detail::default_errors>
  [[nodiscard]] detail::outcome<E, std::int64_t> size(E = E{}) const {
    std::int64_t count = 0;
    const dist_status_t status = dist_store_num_keys(handle_, &count);
    return detail::finish<E>(status, std::move(count));
  }

  template <class E = detail::default_errors>
  [[nodiscard]] detail::outcome<E, std::vector<std::string>> keys(E = E{}) const {
    blob list;
    const dist_status_t status = dist_store_list_keys(handle_, list.out());
    return detail::finish<E>(status, list.strings());
  }

  /// Waits for several keys, and returns their values.
  template <class E = detail::default_errors>
  [[nodiscard]] detail::outcome<E, std::vector<std::string>> get_all(const std::vector<std::string> &keys, E = E{}) const {
    const key_list list(keys);
    blob values;
    const dist_status_t status =
        dist_store_multi_get(handle_, list.data.data(), list.sizes.data(), keys.size(), values.out());
    return detail::finish<E>(status, values.strings());
  }

  /// Sets several keys to as many values.
  template <class E = detail::default_errors>
  detail::outcome<E, void> set_all(const std::vector<std::pair<std::string, std::string>> &entries, E = E{}) const {
    std::vector<const char *> names;
    std::vector<const void *> values;
    std::vector<std::size_t> name_sizes, value_sizes;
    for (const auto &[name, value] : entries) {
      names.push_back(name.data());
      name_sizes.push_back(name.size());
      values.push_back(value.data());
      value_sizes.push_back(value.size());
    }
    return detail::finish<E>(dist_store_multi_set(handle_, names.data(), name_sizes.data(), values.data(),
                                                  value_sizes.data(), entries.size()));
  }

  /// Appends an item to a queue.
  template <class E = detail::default_errors>
  detail::outcome<E, void> push(std::string_view queue, byte_view item, E = E{}) const {
    return detail::finish<E>(dist_store_queue_push(handle_, queue.data(), queue.size(), item.data(), item.size()));
  }

  /// Waits for an item of a queue, and takes it.
  template <class E = detail::default_errors>
  [[nodiscard]] detail::outcome<E, std::string> pop(std::string_view queue, E = E{}) const {
    blob item;
    const dist_status_t status = dist_store_queue_pop(handle_, queue.data(), queue.size(), 1, item.out());
    return detail::finish_text<E>(status, item);
  }

  /// Takes an item of a queue, if there is one.
  template <class E = detail::default_errors>
  [[nodiscard]] detail::outcome<E, std::optional<std::string>> try_pop(std::string_view queue, E = E{}) const {
    blob item;
    const dist_status_t status = dist_store_queue_pop(handle_, queue.data(), queue.size(), 0, item.out());
    if (status == DIST_ERR_QUEUE_EMPTY) return std::optional<std::string>();
    return detail::finish<E>(status, std::optional<std::string>(item.str()));
  }

  template <class E = detail::default_errors>
  [[nodiscard]] detail::outcome<E, std::int64_t> queue_size(std::string_view queue, E = E{}) const {
    std::int64_t length = 0;
    const dist_status_t status = dist_store_queue_len(handle_, queue.data(), queue.size(), &length);
    return detail::finish<E>(status, std::move(length));
  }

  /// Waits until as many processes have called it with this key.
  template <class E = detail::default_errors>
  detail::outcome<E, void> barrier(std::string_view key, int world_size, time_limit limit = {}, E = E{}) const {
    return detail::finish<E>(dist_store_barrier(handle_, key.data(), key.size(), world_size, limit.ms()));
  }

  template <class E = detail::default_errors>
  detail::outcome<E, void> set_timeout(time_limit limit, E = E{}) const {
    return detail::finish<E>(dist_store_set_timeout(handle_, limit.ms()));
  }
  /// The time-out of calls through this handle; nothing for no limit.
  std::optional<std::chrono::milliseconds> timeout() const noexcept {
    const std::int64_t ms = dist_store_get_timeout(handle_);
    return ms < 0 ? std::nullopt : std::optional<std::chrono::milliseconds>(ms);
  }

  /// The port and the host of a TCP store; -1 and "" for others.
  int port() const noexcept { return dist_store_port(handle_); }
  std::string host() const {
    return detail::copied_text([this](char *text, std::size_t size) { return dist_store_host(handle_, text, size); });
  }

  dist_store_t *get() const noexcept { return handle_; }

 private:
  struct key_list {
    explicit key_list(const std::vector<std::string> &keys) {
      for (const std::string &key : keys) {
        data.push_back(key.data());
        sizes.push_back(key.size());
      }
    }
    std::vector<const char *> data;
    std::vector<std::size_t> sizes;
  };

  template <class E, class F>
  static detail::outcome<E, store> made(F create) {
    dist_store_t *handle = nullptr;
    const dist_status_t status = create(&handle);
    return detail::finish<E>(status, store(handle));
  }

  dist_store_t *handle_;
};

DIST_HPP_END

#endif  // DIST_STORE_HPP
