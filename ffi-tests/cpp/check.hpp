// Checks, and ranks that are threads of the test.
#ifndef CHECK_HPP
#define CHECK_HPP

#include <dist.hpp>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

using namespace std::chrono_literals;

#define CHECK(condition)                                                       \
  do {                                                                         \
    if (!(condition)) {                                                        \
      std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);     \
      std::_Exit(1);                                                           \
    }                                                                          \
  } while (false)

/// Whether a text contains another one.
inline bool contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

/// Runs a function on ranks that are threads: `body(const dist::group &)`.
template <class F>
void run_ranks(int size, F body, const char *name = "ranks") {
  const dist::store meeting_place = *dist::store::hash(dist::nothrow);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      dist::join_options options{rank, size, name};
      options.timeout = 30s;
      auto group = dist::group::join(meeting_place, options, dist::nothrow);
      if (!group) std::fprintf(stderr, "%s\n", group.error().message.c_str());
      CHECK(group.has_value());
      body(*group);
    });
  }
  for (std::thread &thread : threads) thread.join();
}

#endif  // CHECK_HPP
