// Stores: of the library, and of the program.
#include "check.hpp"

#include <unistd.h>

#include <condition_variable>
#include <map>
#include <mutex>

namespace {

void check_every_function(const dist::store &s) {
  s.set("key", "value");
  CHECK(s.get("key") == "value" && s.contains({"key"}) && !s.contains({"key", "other"}));
  CHECK(s.add("count", 3) == 3 && s.add("count", -1) == 2);
  CHECK(s.compare_set("key", "wrong", "x") == "value" && s.compare_set("key", "value", "new") == "new");
  s.append("key", "er");
  CHECK(s.get("key") == "newer");
  s.wait({"key", "count"}, 1s);
  const auto missing = s.wait({"missing"}, 1ms, dist::nothrow);
  CHECK(!missing && missing.error().code == std::errc::timed_out);
  s.set_all({{"a", "1"}, {"b", std::string("2\0", 2)}});
  CHECK((s.get_all({"a", "b"}) == std::vector<std::string>{"1", std::string("2\0", 2)}));
  CHECK(s.erase("a") && !s.erase("a"));
  CHECK(s.size() >= 3 && !s.keys().empty());
  s.push("queue", "first");
  s.push("queue", std::vector<int>{1});
  CHECK(s.queue_size("queue") == 2 && s.pop("queue") == "first" && s.try_pop("queue")->size() == sizeof(int));
  CHECK(!s.try_pop("queue"));
  s.barrier("done", 1, 1s);
  const dist::store part = s.prefixed("part");
  part.set("x", "y");
  CHECK(s.get("part/x") == "y");
  dist::store copy = s.clone();
  copy.set_timeout(50ms);
  CHECK(copy.timeout() == std::optional<std::chrono::milliseconds>(50));
  CHECK(!copy.get("missing", dist::nothrow));
  copy.set_timeout(dist::forever);
  CHECK(!copy.timeout());
  copy = s.clone();
  CHECK(copy.get() != nullptr);
}

void library_stores_work() {
  check_every_function(dist::store::hash());
  const std::string path = "/tmp/dist_cpp_store." + std::to_string(getpid());
  check_every_function(dist::store::file(path, 1, "job", 10s));
  unlink(path.c_str());
  dist::tcp_store_options options;
  options.host = "127.0.0.1";
  options.server = true;
  options.timeout = 10s;
  options.secret = "secret";
  options.multi_tenant = false;
  options.wait_for_workers = false;
  const dist::store server = dist::store::tcp(options);
  check_every_function(server);
  CHECK(server.port() > 0 && server.host() == "127.0.0.1");
  options.server = false;
  options.port = server.port();
  CHECK(dist::store::tcp(options).get("key") == "newer");
  options.secret = "wrong";
  const auto refused = dist::store::tcp(options, dist::nothrow);
  CHECK(!refused && refused.error().code == std::errc::permission_denied);
}

/// A map with a lock. It has only what a store must have.
class small_store {
 public:
  using ms = std::chrono::milliseconds;
  virtual ~small_store() { ++destroyed; }

  void set(std::string_view key, std::string_view value, ms) {
    const std::lock_guard<std::mutex> held(lock_);
    values_[std::string(key)] = value;
    changed_.notify_all();
  }
  std::string get(std::string_view key, ms limit) {
    wait({std::string(key)}, limit);
    const std::lock_guard<std::mutex> held(lock_);
    return values_[std::string(key)];
  }
  std::int64_t add(std::string_view key, std::int64_t amount, ms) {
    const std::lock_guard<std::mutex> held(lock_);
    std::string &value = values_[std::string(key)];
    value = std::to_string((value.empty() ? 0 : std::stoll(value)) + amount);
    changed_.notify_all();
    return std::stoll(value);
  }
  void wait(const std::vector<std::string> &keys, ms limit) {
    std::unique_lock<std::mutex> held(lock_);
    const bool there = changed_.wait_for(held, limit, [&] { return has(keys); });
    if (!there) throw std::system_error(dist::errc::timeout);
  }
  bool contains(const std::vector<std::string> &keys, ms) {
    const std::lock_guard<std::mutex> held(lock_);
    return has(keys);
  }
  bool erase(std::string_view key, ms) {
    const std::lock_guard<std::mutex> held(lock_);
    if (key == "cursed") throw 1;
    return values_.erase(std::string(key)) > 0;
  }

  static inline int destroyed = 0;

 protected:
  bool has(const std::vector<std::string> &keys) const {
    for (const std::string &key : keys) {
      if (values_.count(key) == 0) return false;
    }
    return true;
  }

  std::mutex lock_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
};

/// The same with all optional functions.
class whole_store : public small_store {
 public:
  std::string compare_set(std::string_view key, std::string_view expected, std::string_view desired, ms) {
    const std::lock_guard<std::mutex> held(lock_);
    std::string &value = values_[std::string(key)];
    if (value == expected) value = desired;
    return value;
  }
  void append(std::string_view key, std::string_view more, ms) {
    const std::lock_guard<std::mutex> held(lock_);
    values_[std::string(key)] += more;
  }
  std::int64_t size(ms) {
    const std::lock_guard<std::mutex> held(lock_);
    return static_cast<std::int64_t>(values_.size());
  }
  std::vector<std::string> keys(ms) {
    const std::lock_guard<std::mutex> held(lock_);
    std::vector<std::string> all;
    for (const auto &entry : values_) all.push_back(entry.first);
    return all;
  }
  void push(std::string_view queue, std::string_view item, ms) {
    const std::lock_guard<std::mutex> held(lock_);
    queues_[std::string(queue)].emplace_back(item);
  }
  std::optional<std::string> pop(std::string_view queue, bool, ms) {
    const std::lock_guard<std::mutex> held(lock_);
    auto &items = queues_[std::string(queue)];
    if (items.empty()) return std::nullopt;
    std::string first = items.front();
    items.erase(items.begin());
    return first;
  }
  std::int64_t queue_size(std::string_view queue, ms) {
    const std::lock_guard<std::mutex> held(lock_);
    return static_cast<std::int64_t>(queues_[std::string(queue)].size());
  }

 private:
  std::map<std::string, std::vector<std::string>> queues_;
};

void custom_store_works() {
  check_every_function(dist::make_store(std::make_unique<whole_store>()));
  {
    const dist::store small = dist::make_store(std::make_unique<small_store>());
    small.set("x", "1");
    CHECK(small.add("x", 1) == 2);
    const auto unsupported = small.compare_set("x", "1", "2", dist::nothrow);
    CHECK(!unsupported && unsupported.error().code == dist::errc::unsupported);
    const auto thrown = small.erase("cursed", dist::nothrow);
    CHECK(!thrown && thrown.error().code == dist::errc::backend);
    // Ranks meet in it.
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&small, rank] {
        dist::join_options options{rank, 2, "met"};
        options.connect_timeout = 30s;
        CHECK(dist::group::join(small, options).all_reduce_value(1) == 2);
      });
    }
    for (std::thread &thread : threads) thread.join();
  }
  CHECK(small_store::destroyed == 2);
}

}  // namespace

int main() {
  library_stores_work();
  custom_store_works();
  return 0;
}
