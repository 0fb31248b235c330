// Groups, their memory, and diagnostics.
#include "check.hpp"

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <fstream>
#include <mutex>
#include <sstream>
#if __has_include(<memory_resource>)
#include <memory_resource>
#endif

namespace {

void group_is_described(const dist::group &g) {
  CHECK(g.name() == "ranks" && g.backend() == "native" && g.size() == 3 && g.rank() < 3);
  CHECK(g.local_size() == 3 && g.local_rank() == g.rank() && g.host_index() == 0 && g.host_count() == 1);
  CHECK((g.global_ranks() == std::vector<int>{0, 1, 2}) && g.rank_from_global(2) == 2 && g.rank_to_global(1) == 1);
  CHECK(g.timeout() == std::optional<std::chrono::milliseconds>(30s));
  g.set_timeout(dist::forever);
  CHECK(!g.timeout());
  g.set_timeout(20s);
  g.barrier();
  CHECK(g.sequence() > 0 && g.error_message().empty() && !g.culprit());
  CHECK(contains(g.describe(), "\"native\""));
  CHECK(g.supports<float>(dist::kind::all_reduce, dist::avg) && !g.supports<float>(dist::kind::all_reduce, dist::bit_and));
  const dist::group_ref copy = g;
  CHECK(copy == g && copy != dist::group_ref(nullptr) && copy.get() == g.get());
}

void subgroups_communicate(const dist::group &g) {
  std::optional<dist::group> odd = g.split(g.rank() == 1 ? std::optional<int>() : 0, -g.rank());
  CHECK(odd.has_value() == (g.rank() != 1));
  if (odd) CHECK((odd->global_ranks() == std::vector<int>{2, 0}) && odd->all_reduce_value(1) == 2);
  dist::group_options options;
  options.name = "pair";
  options.timeout = 10s;
  options.backend = "native";
  options.backend_options = "";
  options.connect_timeout = 10s;
  std::optional<dist::group> pair = g.subgroup({1, 2}, options);
  CHECK(pair.has_value() == (g.rank() != 0));
  if (pair) CHECK(pair->name() == "pair" && pair->rank() == g.rank() - 1 && pair->timeout() == std::chrono::milliseconds(10s));
  if (g.rank() == 0) {
    options.local_synchronization = true;
    options.name = "alone";
    const auto alone = g.subgroup({0}, options);
    CHECK(alone && alone->size() == 1);
  }
  const auto wrong = g.subgroup({5}, {}, dist::nothrow);
  CHECK(!wrong && wrong.error().code == dist::errc::invalid_argument);
}

void failure_reaches_all_ranks(const dist::group &g) {
  dist::group broken = *g.subgroup({0, 1, 2});
  if (broken.rank() == 1) broken.abort("no reason");
  const auto outcome = broken.all_reduce_value(1, dist::sum, {}, dist::nothrow);
  CHECK(!outcome && outcome.error().code == dist::errc::aborted && outcome.error().fatal_to_group());
  CHECK(contains(broken.error_message(), "no reason") && broken.culprit()->kind == dist::fault::aborted);
  dist::shrink_options options;
  options.timeout = 10s;
  dist::group next = broken.shrink(options);
  CHECK(next.size() == 3);
  broken = std::move(next);
  CHECK(broken.all_reduce_value(1) == 3);
}

void memory_is_allocated(const dist::group &g) {
  dist::vector<float> v(5000, 1, dist::allocator<float>(g));
  g.all_reduce(v);
  CHECK(v[4999] == 3);
  const dist::allocator<int> other(v.get_allocator());
  CHECK(other == dist::allocator<int>(g) && !(other != dist::allocator<int>(g)) && other.group() == g);
  std::vector<float> registered(100);
  {
    const auto registration = dist::registration::of(g, registered);
    CHECK(!dist::registration::of(g, registered, dist::nothrow));
  }
  CHECK(dist::registration::of(g, registered, dist::nothrow));
#ifdef __cpp_lib_memory_resource
  dist::memory_resource resource(g);
  std::pmr::vector<double> pooled({1, 2, 3}, &resource);
  g.all_reduce(pooled);
  CHECK(pooled[2] == 9 && resource.is_equal(resource));
#endif
}

void diagnostics_are_reported() {
  dist::set_debug_level(dist::debug_level::info);
  CHECK(dist::get_debug_level() == dist::debug_level::info);
  dist::set_debug_level_from_env();
  CHECK(dist::get_debug_level() == dist::debug_level::off);
  std::mutex lock;
  std::string lines;
  {
    dist::log_sink sink([&](dist::log_level level, const char *line) {
      const std::lock_guard<std::mutex> held(lock);
      CHECK(level <= dist::log_level::info);
      lines += line;
    });
    dist::set_log_level(dist::log_level::info);
    dist::set_debug_level(dist::debug_level::info);
    const std::string file = "/tmp/dist_cpp_trace." + std::to_string(getpid());
    {
      dist::trace trace(file);
      CHECK(!dist::trace::start(file, dist::nothrow));
      run_ranks(1, [](const dist::group &g) {
        g.barrier({}, dist::nothrow).value();
        CHECK(contains(dist::flight_recorder(g), "barrier"));
      }, "logged");
    }
    std::stringstream text;
    text << std::ifstream(file).rdbuf();
    std::remove(file.c_str());
    CHECK(contains(text.str(), "barrier"));
    auto again = dist::trace::start(file, dist::nothrow);
    CHECK(again && again->stop(dist::nothrow));
    std::remove(file.c_str());
    dist::set_debug_level(dist::debug_level::off);
    dist::set_log_level(dist::log_level::off);
  }
  CHECK(contains(lines, "logged") && contains(dist::flight_recorder(), "barrier"));
  CHECK(dist::last_error_backtrace().empty() || true);
  CHECK(dist::is_backend_available("native") && !dist::is_backend_available("no such back end"));
  const auto loaded = dist::load_backend("/no/such/file.so", dist::nothrow);
  CHECK(!loaded && loaded.error().code == dist::errc::not_found);
}

}  // namespace

int main() {
  run_ranks(3, [](const dist::group &g) {
    group_is_described(g);
    subgroups_communicate(g);
    failure_reaches_all_ranks(g);
    memory_is_allocated(g);
  });
  diagnostics_are_reported();
  return 0;
}
