// Works: waiting, callbacks, lists, batches, and above all what happens to buffers when a scope
// ends early.
#include "check.hpp"

#include <poll.h>

#include <atomic>
#include <memory>
#include <stdexcept>

namespace {

using floats = std::vector<float>;

/// A buffer that counts its life: moved once into a work, and destroyed once.
class counted {
 public:
  explicit counted(std::size_t n) : values_(n, 1) { ++alive; }
  counted(counted &&other) noexcept : values_(std::move(other.values_)) { ++alive; }
  ~counted() { --alive; }
  float *data() noexcept { return values_.data(); }
  std::size_t size() const noexcept { return values_.size(); }
  static inline std::atomic<int> alive = 0;

 private:
  floats values_;
};

void check_waits(const dist::group &g) {
  floats x{1};
  dist::work empty;
  CHECK(!empty && empty.done());
  dist::work w = g.all_reduce_async(x, dist::sum, dist::options{}.with_label("x"));
  CHECK(w && w.get() != nullptr);
  CHECK(!w.wait_slice(1ms) || w.done());
  while (!w.wait_for(1ms)) {
  }
  w.synchronize();
  CHECK(w.done() && w.error_message().empty() && !w.culprit() && w.sequence() > 0);
  CHECK(w.started().count() > 0 && w.elapsed().count() >= 0 && w.source() == -1 && w.tag() == -1);
  dist::work moved = std::move(w);
  w = std::move(moved);
  w.detach();
  CHECK(!w);

  std::vector<dist::work> works;
  floats many[3] = {{1}, {2}, {3}};
  for (floats &each : many) works.push_back(g.all_reduce_async(each));
  dist::wait_all(works, 10s);
  CHECK(dist::wait_any_slice(works, 5s));
  const auto any = dist::wait_any(works);
  CHECK(any && *any < 3 && dist::test_any(works) == any);
  works.clear();
  CHECK(!dist::wait_any(works) && !dist::test_any(works) && many[2][0] == 3 * static_cast<float>(g.size()));
}

void check_callbacks(const dist::group &g) {
  floats x{1};
  std::atomic<int> called = 0;
  {
    dist::work w = g.all_reduce_async(x);
    w.on_complete([&called](std::error_code code, const char *) { called += code ? 100 : 1; });
    w.wait();
  }
  while (called == 0) std::this_thread::yield();
  CHECK(called == 1);
  // One that is withdrawn is destroyed and not called.
  const auto token = std::make_shared<int>(0);
  if (g.rank() == 0) {
    dist::work waits = g.recv_async(x, 1, 77);
    const dist::callback_id id = waits.on_complete([token, &called](std::error_code, const char *) { called = 200; });
    CHECK(token.use_count() == 2 && waits.remove(id) && token.use_count() == 1 && !waits.remove({id.function, id.user}));
    g.barrier();
    waits.wait();
  } else {
    g.barrier();
    g.send(x, 0, 77);
  }
  CHECK(called == 1);
}

void check_completion_descriptor(const dist::group &g) {
  const int fd = g.completion_fd();
  CHECK(fd > 2);
  floats x{1};
  const dist::work w = g.all_reduce_async(x);
  pollfd poll_for{fd, POLLIN, 0};
  CHECK(poll(&poll_for, 1, 10'000) == 1);
  const auto done = g.take_done();
  CHECK(done.size() == 1 && done[0] == w.get());
}

/// An exception leaves a scope with pending works, of lent and of moved buffers: the works end
/// first.
void unwinding_waits_for_works(const dist::group &g) {
  constexpr std::size_t large = 200'000;
  float result = 0;
  try {
    floats lent(large, 1);
    floats later;
    const dist::work lends = g.all_reduce_async(lent);
    const auto owns = g.all_reduce_async(counted(large));
    const dist::work keeps = g.all_reduce_async(result = 1, dist::max);
    throw std::runtime_error("a failure of the program");
  } catch (const std::runtime_error &) {
  }
  // The works were not cancelled: the other ranks have their results, too.
  CHECK(result == 1 && g.all_reduce_value(1) == g.size());
}

/// A work with buffers keeps them as a plain work, and when it is detached.
void plain_works_keep_buffers(const dist::group &g) {
  constexpr std::size_t large = 200'000;
  std::vector<dist::work> works;
  works.push_back(g.all_reduce_async(counted(large)));
  dist::work plain = g.all_reduce_async(counted(large));
  plain = g.all_reduce_async(counted(large));
  works.push_back(std::move(plain));
  g.all_reduce_async(counted(large)).detach();
  g.barrier();
}

/// A peer that never comes: the destructor waits until the deadline, and the buffer lives so long.
void destructor_waits_for_the_deadline(const dist::group &g) {
  if (g.rank() != 0) return;
  const auto begin = std::chrono::steady_clock::now();
  {
    auto w = g.recv_async(counted(10), 1, 99, dist::options{}.with_timeout(200ms));
    CHECK(!w.wait_for(1ms));
  }
  CHECK(std::chrono::steady_clock::now() - begin >= 190ms);
  auto fails = g.recv_async(floats{5}, 1, 99, dist::options{}.with_timeout(1ms));
  const auto outcome = fails.take(dist::nothrow);
  CHECK(!outcome && outcome.error().code == dist::errc::timeout && contains(fails.error_message(), "rank 1"));
  CHECK(fails.culprit() && fails.culprit()->rank == 1 && fails.culprit()->kind == dist::fault::late);
  CHECK(fails.reclaim() == floats{5});
}

void check_batches(const dist::group &g) {
  const float n = static_cast<float>(g.size());
  floats a{1}, b{2};
  {
    dist::batch batch;
    g.all_reduce(a);
    g.all_reduce(b);
    batch.run();
  }
  CHECK(a[0] == n && b[0] == 2 * n);
  {
    dist::batch batch({g});
    auto inside = g.all_reduce_async(a);
    auto all = batch.submit();
    all.wait();
    inside.wait();
    CHECK(a[0] == n * n);
  }
  // Works and the batch itself end with the scope, in any order, with the buffers that were moved
  // in.
  {
    dist::batch batch;
    { const auto inner = g.all_reduce_async(counted(100'000)); }
    const auto outer = g.all_reduce_async(counted(100'000));
    g.all_reduce(b);
  }
  CHECK(b[0] == 2 * n * n);
  try {
    dist::batch batch;
    const auto inner = g.all_reduce_async(counted(10));
    throw std::runtime_error("a failure of the program");
  } catch (const std::runtime_error &) {
  }
  {
    dist::batch batch;
    { const auto inner = g.all_reduce_async(counted(1'000)); }
    auto all = batch.submit();
    CHECK(all.wait(dist::nothrow));
  }
  auto begun = dist::batch::begin({}, dist::nothrow);
  CHECK(begun && !dist::batch::begin({}, dist::nothrow));
  CHECK(begun->run(dist::nothrow));
}

}  // namespace

int main() {
  run_ranks(2, [](const dist::group &g) {
    check_waits(g);
    check_callbacks(g);
    check_completion_descriptor(g);
    for (int i = 0; i < 20; ++i) unwinding_waits_for_works(g);
    for (int i = 0; i < 20; ++i) plain_works_keep_buffers(g);
    destructor_waits_for_the_deadline(g);
    check_batches(g);
  });
  CHECK(dist::stop_callbacks(10s));
  CHECK(counted::alive == 0);
  dist::start_callbacks();
  return 0;
}
