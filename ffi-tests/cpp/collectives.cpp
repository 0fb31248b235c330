// Every collective with blocks of one size: in place, into another buffer, with lent and with moved
// buffers.
#include "check.hpp"

#include <array>
#include <complex>
#include <numeric>

namespace {

constexpr int size = 3;

/// Two elements that no element type of the library has.
struct pair_of_ints {
  int a, b;
};

bool operator==(const pair_of_ints &x, const pair_of_ints &y) { return x.a == y.a && x.b == y.b; }

using floats = std::vector<float>;

void check_reductions(const dist::group &g) {
  const float me = static_cast<float>(g.rank());
  floats x{me, 1};
  g.all_reduce(x);
  CHECK(x == (floats{3, 3}));
  const floats in{me, -me};
  floats out(2);
  g.all_reduce(in, out, dist::max);
  CHECK(out == (floats{2, 0}));
  CHECK(g.all_reduce_value(g.rank() + 1, dist::product) == 6);
  CHECK(g.all_reduce_value(me, dist::avg) == 1);
  CHECK(g.all_reduce_value(1 << g.rank(), dist::bit_or) == 7);
  CHECK(g.all_reduce_value(g.rank() | 8, dist::bit_and) == 8);
  CHECK(g.all_reduce_value(static_cast<unsigned char>(1), dist::bit_xor) == 1);
  CHECK(g.all_reduce_value(me, dist::premul_sum(0.5)) == 1.5F);

  g.reduce(x = {me, me}, 1, dist::min);
  CHECK(g.rank() == 1 ? x == (floats{0, 0}) : x == (floats{me, me}));
  floats at_root(g.rank() == 2 ? 2 : 0);
  g.reduce(in, at_root, 2);
  CHECK(at_root == (g.rank() == 2 ? floats{3, -3} : floats{}));

  const floats blocks{me, me + 1, me + 2};
  float block = 0;
  g.reduce_scatter(blocks, block);
  CHECK(block == static_cast<float>(3 + 3 * g.rank()));

  g.scan(x = {me + 1});
  CHECK(x[0] == static_cast<float>((g.rank() + 1) * (g.rank() + 2) / 2));
  g.scan(in, out);
  g.exscan(in, out = {7, 7});
  CHECK(out[0] == (g.rank() == 0 ? 7 : (me - 1) * me / 2));
  g.exscan(x = {1});
  CHECK(x[0] == (g.rank() == 0 ? 1 : me));
}

void check_data_movement(const dist::group &g) {
  std::array<double, 2> pair{};
  if (g.rank() == 1) pair = {1.5, 2.5};
  g.broadcast(pair, 1);
  CHECK(pair[1] == 2.5);
  CHECK(g.broadcast_value(g.rank() == 2 ? 'x' : 'y', 2) == 'x');
  const auto own = pair_of_ints{g.rank(), 10};
  CHECK((g.broadcast_value(own, 0) == pair_of_ints{0, 10}));

  const std::vector<int> all = g.all_gather(g.rank());
  CHECK((all == std::vector<int>{0, 1, 2}));
  CHECK((g.all_gather(own)[2] == pair_of_ints{2, 10}));
  std::vector<pair_of_ints> each(size);
  g.all_gather(own, each);
  CHECK((each[1] == pair_of_ints{1, 10}));

  const std::vector<int> at_root = g.gather(g.rank() * 2, 0);
  CHECK(g.rank() == 0 ? at_root == (std::vector<int>{0, 2, 4}) : at_root.empty());
  std::vector<pair_of_ints> gathered(g.rank() == 1 ? size : 0);
  g.gather(own, gathered, 1);
  CHECK(g.rank() != 1 || (gathered[2] == pair_of_ints{2, 10}));

  const std::vector<long> parts = g.rank() == 0 ? std::vector<long>{5, 6, 7} : std::vector<long>{};
  long part = 0;
  g.scatter(parts, part, 0);
  CHECK(part == 5 + g.rank());

  const std::vector<int> to_each{g.rank() * 10, g.rank() * 10 + 1, g.rank() * 10 + 2};
  std::vector<int> from_each(size);
  g.all_to_all(to_each, from_each);
  CHECK((from_each == std::vector<int>{g.rank(), 10 + g.rank(), 20 + g.rank()}));
}

void check_async_calls(const dist::group &g) {
  floats lent{1};
  dist::work w = g.all_reduce_async(lent);
  w.wait();
  CHECK(lent[0] == 3);
  auto moved = g.all_reduce_async(floats{2}, dist::product);
  CHECK(moved.take() == floats{8});
  // The input is moved in, the output is lent.
  auto mixed = g.all_reduce_async(floats{2}, lent);
  CHECK(mixed.take() == floats{2} && lent[0] == 6);
  auto both = g.all_reduce_async(floats{2}, floats(1), dist::sum);
  CHECK(std::get<1>(both.take()) == floats{6});
  CHECK(g.reduce_async(floats{1}, 0).take() == floats{g.rank() == 0 ? 3.0F : 1.0F});
  CHECK(g.reduce_scatter_async(floats(size, 1), lent).take().size() == size);
  CHECK(lent[0] == 3);
  CHECK(g.scan_async(floats{1}).take() == floats{static_cast<float>(g.rank() + 1)});
  g.exscan_async(lent).wait();
  CHECK(g.broadcast_async(floats{static_cast<float>(g.rank())}, 2).take() == floats{2});
  floats all(size);
  g.all_gather_async(lent, all).wait();
  g.gather_async(lent, all, 0).wait();
  g.scatter_async(all, lent, 0).wait();
  CHECK(g.all_to_all_async(all, floats(size)).take().size() == size);
  g.barrier_async().wait();
}

void check_barriers(const dist::group &g) {
  g.barrier();
  CHECK(g.monitored_barrier(10s).empty());
  CHECK(g.all_equal("the same"));
  CHECK(!g.find_difference(std::vector<int>{1, 2}));
  CHECK(g.find_difference(g.rank() == 2 ? "other" : "same") == 2);
  CHECK(!g.all_equal(std::to_string(g.rank())));
}

/// (min, max) of pairs: an operator of the program.
pair_of_ints merge_ranges(const pair_of_ints &x, const pair_of_ints &y) {
  return {x.a < y.a ? x.a : y.a, x.b > y.b ? x.b : y.b};
}

/// An operator belongs to the process: the ranks, which are threads, share one.
void custom_operators_reduce(const dist::group &g, const dist::custom_op<pair_of_ints> &range) {
  std::vector<pair_of_ints> x{{g.rank(), g.rank()}};
  g.all_reduce(x, range);
  CHECK((x[0] == pair_of_ints{0, size - 1}));
  CHECK((g.all_reduce_value(pair_of_ints{-g.rank(), 0}, range) == pair_of_ints{1 - size, 0}));
  auto w = g.all_reduce_async(std::vector<pair_of_ints>{{g.rank(), 0}}, range);
  CHECK((w.take()[0] == pair_of_ints{0, 0}));
}

void check_options(const dist::group &g) {
  std::complex<float> z(1, 1);
  g.all_reduce(z, dist::sum, dist::options{}.with_timeout(10s).with_label("z").with_check_nan().with_check_inf());
  CHECK(z == std::complex<float>(3, 3));
  float x = 1;
  g.all_reduce(x, dist::sum, dist::options{}.with_canonical().with_device(DIST_DEVICE_HOST).with_stream(nullptr));
  g.all_reduce(x, dist::premul_sum(2), dist::options{}.with_timeout(dist::forever).with_label("scaled"));
#if __cplusplus >= 202002L
  g.all_reduce(x, dist::sum, {.timeout = 5s, .label = "designated"});
#endif
  const auto wrong = g.all_reduce(x, dist::sum, dist::options{}.with_algorithm("no such"), dist::nothrow);
  CHECK(!wrong && wrong.error().code == dist::errc::invalid_argument && contains(wrong.error().message, "no such"));
}

void mismatched_sizes_are_refused(const dist::group &g) {
  floats three(3), two(2);
  const auto check_refused = [](auto outcome, const char *call) {
    CHECK(!outcome && outcome.error().code == dist::errc::invalid_argument && contains(outcome.error().message, call));
  };
  check_refused(g.all_reduce(three, two, dist::sum, {}, dist::nothrow), "all_reduce");
  check_refused(g.all_reduce_async(three, two, dist::sum, {}, dist::nothrow), "all_reduce");
  check_refused(g.reduce_scatter(two, three, dist::sum, {}, dist::nothrow), "reduce_scatter");
  check_refused(g.scan(three, two, dist::sum, {}, dist::nothrow), "scan");
  check_refused(g.all_gather(two, three, {}, dist::nothrow), "all_gather");
  check_refused(g.gather(two, three, g.rank(), {}, dist::nothrow), "gather");
  check_refused(g.scatter(two, three, g.rank(), {}, dist::nothrow), "scatter");
  check_refused(g.all_to_all(two, two, {}, dist::nothrow), "all_to_all");
  check_refused(g.all_to_all(three, two, {}, dist::nothrow), "all_to_all");
}

}  // namespace

int main() {
  const auto range = dist::make_op<pair_of_ints>("range",
                                                 [](const auto &x, const auto &y) { return merge_ranges(x, y); },
                                                 dist::op_kind::commutative);
  run_ranks(size, [&](const dist::group &g) {
    check_reductions(g);
    check_data_movement(g);
    check_async_calls(g);
    check_barriers(g);
    custom_operators_reduce(g, range);
    check_options(g);
    mismatched_sizes_are_refused(g);
  });
  return 0;
}
