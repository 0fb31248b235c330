// The common part of the programs around the blocks of docs/cpp.md. A program replaces the line
// `#include "block.inc"` by its block. It ends with status 1 if a check fails.
#include <dist.hpp>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

inline void check(bool holds, const char *what) {
  if (!holds) {
    std::fprintf(stderr, "the check failed: %s\n", what);
    std::exit(1);
  }
}

void run(dist::group_ref world);

#ifndef FRAME_HAS_MAIN
int main() try {
  dist::runtime runtime;
  run(runtime.world());
  std::puts("done");
  return 0;
} catch (const dist::error &error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
#endif
