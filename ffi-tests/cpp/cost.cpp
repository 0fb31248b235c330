// What the header adds to a call: run under callgrind, which counts the instructions of c_calls and
// of cpp_calls. Each makes the same number of 4-byte reductions. The program itself checks that the
// header allocates nothing.
#include <dist.hpp>

#include <cstdio>
#include <cstdlib>
#include <new>

namespace {

int allocations = 0;

void *counted_alloc(std::size_t bytes) {
  ++allocations;
  void *memory = std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

constexpr int calls = 1000;

}  // namespace

void *operator new(std::size_t bytes) { return counted_alloc(bytes); }
void *operator new[](std::size_t bytes) { return counted_alloc(bytes); }
void operator delete(void *memory) noexcept { std::free(memory); }
void operator delete[](void *memory) noexcept { std::free(memory); }
void operator delete(void *memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void *memory, std::size_t) noexcept { std::free(memory); }

extern "C" {

[[gnu::noinline]] int c_calls(dist_group_t *world, float *x) {
  for (int i = 0; i < calls; ++i) {
    if (dist_all_reduce(world, x, x, 1, DIST_F32, DIST_SUM, nullptr, nullptr) != DIST_OK) return 1;
  }
  return 0;
}

[[gnu::noinline]] int cpp_calls(dist::group_ref world, float *x) {
  for (int i = 0; i < calls; ++i) world.all_reduce(*x);
  return 0;
}
}

int main() {
  const dist::store meeting_place = dist::store::hash();
  const dist::group world = dist::group::join(meeting_place, {0, 1, "alone"});
  float x = 1;
  if (c_calls(world.get(), &x) != 0) return 1;
  const int before = allocations;
  if (cpp_calls(world, &x) != 0) return 1;
  const dist::options plain;
  world.all_reduce(x, dist::max, plain);
  world.broadcast(x, 0);
  world.send(x, 0);
  world.recv(x, 0);
  world.barrier();
  if (allocations != before) {
    std::fprintf(stderr, "the header made %d allocations\n", allocations - before);
    return 1;
  }
  return c_calls(world.get(), &x) | cpp_calls(world, &x);
}
