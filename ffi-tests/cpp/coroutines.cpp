// Coroutines over works (C++20).
#include "check.hpp"

#if defined(__cpp_impl_coroutine) && __has_include(<coroutine>)
#include <condition_variable>
#include <coroutine>
#include <deque>
#include <exception>
#include <mutex>
#include <utility>

namespace {

/// A queue of handles, which one thread of the program resumes.
class loop {
 public:
  void post(std::coroutine_handle<> handle) {
    const std::lock_guard<std::mutex> lock(lock_);
    ready_.push_back(handle);
    changed_.notify_one();
  }
  void run_one() {
    std::unique_lock<std::mutex> lock(lock_);
    CHECK(changed_.wait_for(lock, 30s, [&] { return !ready_.empty(); }));
    const std::coroutine_handle<> handle = ready_.front();
    ready_.pop_front();
    lock.unlock();
    handle.resume();
  }

 private:
  std::mutex lock_;
  std::condition_variable changed_;
  std::deque<std::coroutine_handle<>> ready_;
};

struct task {
  struct promise_type {
    bool done = false;
    std::exception_ptr failure;
    task get_return_object() { return task{std::coroutine_handle<promise_type>::from_promise(*this)}; }
    std::suspend_never initial_suspend() noexcept { return {}; }
    std::suspend_always final_suspend() noexcept { return {}; }
    void return_void() { done = true; }
    void unhandled_exception() { failure = std::current_exception(); }
  };
  explicit task(std::coroutine_handle<promise_type> h) : handle(h) {}
  task(task &&other) noexcept : handle(std::exchange(other.handle, {})) {}
  ~task() {
    if (handle) handle.destroy();
  }
  std::coroutine_handle<promise_type> handle;
};

task run_calls(const dist::group &g, loop &l) {
  const auto executor = [&l](std::coroutine_handle<> h) { l.post(h); };
  std::vector<float> lent(1, 1.0F);
  dist::work w = g.all_reduce_async(lent);
  co_await dist::resume_on(executor, w);
  CHECK(lent[0] == 2);
  // A temporary moves into the awaiter, and its buffer comes back. Calls that block are allowed
  // after it.
  const std::vector<float> back = co_await dist::resume_on(executor, g.all_reduce_async(std::vector<float>(1, 3.0F)));
  CHECK(back[0] == 6 && g.all_reduce_value(1) == 2);
  bool has_timed_out = false;
  try {
    float x = 0;
    co_await dist::resume_on(executor, g.recv_async(x, 1 - g.rank(), 5, dist::options{}.with_timeout(20ms)));
  } catch (const dist::error &error) {
    has_timed_out = error.code() == dist::errc::timeout;
  }
  CHECK(has_timed_out);
}

/// A coroutine that is destroyed while it waits.
task wait_forever(const dist::group &g, loop &l, std::vector<float> &into) {
  co_await dist::resume_on([&l](std::coroutine_handle<> h) { l.post(h); }, g.recv_async(into, 1 - g.rank(), 6));
  CHECK(false);
}

}  // namespace

int main() {
  run_ranks(2, [](const dist::group &g) {
    loop l;
    const task t = run_calls(g, l);
    while (!t.handle.done()) l.run_one();
    CHECK(t.handle.promise().done && !t.handle.promise().failure);
    g.barrier();
    if (g.rank() == 0) {
      std::vector<float> into(1);
      std::thread sender;
      {
        const task abandoned = wait_forever(g, l, into);
        // The work in the coroutine waits for its message when it is destroyed.
        sender = std::thread([&g] { g.send(1, 1, 7); });
      }
      sender.join();
    } else {
      CHECK(g.recv_value<int>(0, 7) == 1);
      g.send(1.0F, 0, 6);
    }
  });
  return 0;
}
#else
int main() { return 0; }
#endif
