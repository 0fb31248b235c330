// The smallest program in C++: every rank reports its host, and rank 0 prints the reports.
//
//     distrun --nproc-per-node 4 ./hello_cpp
#include <dist.hpp>

#include <iostream>
#include <sstream>

int main() try {
  const dist::runtime runtime;
  const dist::group_ref world = runtime.world();

  std::ostringstream report;
  report << "hello from rank " << world.rank() << " of " << world.size() << ", rank " << world.local_rank() << " of "
         << world.local_size() << " on its host, libdist " << dist::version();

  const dist::blob reports = world.gather_bytes(report.str(), 0);
  for (const std::string &line : reports.strings()) std::cout << line << '\n';
  return 0;
} catch (const dist::error &error) {
  std::cerr << error.what() << '\n';
  return 1;
}
