// Code that must not compile. The test compiles the file once for each case, and expects the text
// behind `expect:` in the message of the compiler. Without CASE the file compiles.
#include <dist.hpp>

#include <string>
#include <vector>

struct plain {
  int a, b;
};

void refused([[maybe_unused]] dist::group &g, [[maybe_unused]] dist::work &w, [[maybe_unused]] std::vector<float> &v) {
#ifndef CASE
  g.all_reduce(v);
  w.wait();
#elif CASE == 1
  // expect: the buffer must not be const
  const std::vector<float> constant(3);
  g.all_reduce(constant);
#elif CASE == 2
  // expect: no element type of the library
  std::vector<plain> values(3);
  g.all_reduce(values);
#elif CASE == 3
  // expect: not trivially copyable
  std::vector<std::string> texts(3);
  g.broadcast(texts, 0);
#elif CASE == 4
  // expect: pointers or views
  std::vector<float *> pointers(3);
  g.broadcast(pointers, 0);
#elif CASE == 5
  // expect: deleted
  dist::work copy = w;
#elif CASE == 6
  // expect: deleted
  dist::group copy = g;
#elif CASE == 7
  // expect: without captures
  int offset = 1;
  auto op = dist::make_op<int>("op", [offset](int a, int b) { return a + b + offset; });
#elif CASE == 8
  // expect: elements of another type
  auto op = dist::make_op<plain>("op", [](plain a, plain) { return a; });
  g.all_reduce(v, op);
#elif CASE == 9
  // expect: the two buffers have different types
  std::vector<double> out(3);
  g.all_gather(v, out);
#elif CASE == 10
  // expect: no matching
  g.all_reduce(v.data());
#elif CASE == 11
  // expect: no matching
  w.wait(1);
#elif CASE == 12
  // expect: ignoring return value
  g.all_reduce_async(v);
#elif CASE == 13
  // expect: ignoring return
  g.barrier({}, dist::nothrow);
#elif CASE == 14
  // expect: deleted
  dist::batch batch;
  dist::batch copy = batch;
#elif CASE == 15
  // expect: not trivially copyable
  std::vector<std::vector<float>> lists(3);
  g.send(lists, 1);
#endif
}
