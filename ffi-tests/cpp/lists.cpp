// Collectives on lists of tensors.
#include "check.hpp"

#include <array>
#include <cstdint>

namespace {

constexpr int size = 3;

/// A model of three tensors with the values of a rank.
struct model {
  explicit model(int rank)
      : weight(6, static_cast<float>(rank)), steps(3, std::int64_t{10} * rank), large(90000, static_cast<double>(rank)) {}

  std::vector<dist::tensor> list() {
    return {dist::tensor("weight", weight, {3, 2}), dist::tensor("steps", steps), dist::tensor("large", large, {3, 30000})};
  }

  std::vector<float> weight;
  std::vector<std::int64_t> steps;
  std::vector<double> large;
};

void check_values(const dist::group &g) {
  model m(g.rank());
  g.broadcast_list(m.list(), 2);
  CHECK(m.weight[5] == 2 && m.steps[0] == 20 && m.large[89999] == 2);
  m = model(g.rank());
  g.all_reduce_list(m.list());
  CHECK(m.weight[0] == 3 && m.steps[2] == 30 && m.large[0] == 3);
  m = model(g.rank());
  g.all_reduce_list(m.list(), dist::max, dist::options{}.with_label("model"));
  CHECK(m.weight[0] == 2 && m.steps[2] == 20);
  m = model(g.rank());
  g.all_gather_list(m.list());
  CHECK((m.weight == std::vector<float>{0, 0, 1, 1, 2, 2}) && (m.steps == std::vector<std::int64_t>{0, 10, 20}));
  m = model(g.rank());
  g.reduce_scatter_list(m.list());
  const auto own = static_cast<std::size_t>(g.rank());
  CHECK(m.steps[own] == 30 && m.steps[(own + 1) % size] == 10 * g.rank() && m.weight[2 * own] == 3);
  std::array<float, 4> scaled{1, 1, 1, 1};
  if (g.rank() == 0) scaled.fill(8);
  const std::vector<dist::tensor> one{dist::tensor("scaled", scaled)};
  g.all_reduce_list(one, dist::premul_sum(0.5));
  CHECK(scaled[3] == 5);
  g.broadcast_list({}, 0);
}

void check_works(const dist::group &g) {
  model a(g.rank()), b(g.rank()), c(g.rank()), d(g.rank());
  dist::work first = g.broadcast_list_async(a.list(), 1);
  dist::work second = g.all_reduce_list_async(b.list(), dist::min);
  dist::work third = g.all_gather_list_async(c.list());
  dist::work fourth = g.reduce_scatter_list_async(d.list());
  fourth.wait();
  third.wait();
  second.wait();
  first.wait();
  CHECK(a.steps[0] == 10 && b.steps[0] == 0 && c.steps[2] == 20 && d.steps[static_cast<std::size_t>(g.rank())] == 30);
  dist::batch batch;
  model e(g.rank());
  g.broadcast_list(e.list(), 2);
  batch.run();
  CHECK(e.steps[0] == 20);
}

void errors_are_reported(const dist::group &g) {
  model m(g.rank());
  std::vector<dist::tensor> list = m.list();
  if (g.rank() == 1) list[0] = dist::tensor("weight", m.weight, {2, 3});
  const auto differing = g.broadcast_list(list, 0, {}, dist::nothrow);
  CHECK(!differing && differing.error().code == dist::errc::mismatch);
  CHECK(contains(differing.error().message, "tensor 0 \"weight\": the shapes differ: [2, 3] on rank 1"));
  CHECK(m.weight[0] == static_cast<float>(g.rank()));

  const std::vector<dist::tensor> misfit{dist::tensor("weight", m.weight, {4, 2})};
  const auto refused = g.all_gather_list(misfit, {}, dist::nothrow);
  CHECK(!refused && refused.error().code == dist::errc::invalid_argument);
  CHECK(contains(refused.error().message, "all_gather_list: the extents of tensor \"weight\""));
  CHECK(!g.reduce_scatter_list_async(misfit, dist::sum, {}, dist::nothrow));
  const auto on_device = g.all_reduce_list({list[0].with_device(0)}, dist::sum, {}, dist::nothrow);
  CHECK(!on_device && on_device.error().code == dist::errc::unsupported);
  g.broadcast_list(m.list(), 1);
  CHECK(m.steps[0] == 10);
}

}  // namespace

int main() {
  std::vector<float> none;
  CHECK(dist::tensor("none", none, {7, 0}).has_fitting_shape() && dist::tensor("none", none).has_fitting_shape());
  float one = 1;
  CHECK(dist::tensor("one", one, {}).has_fitting_shape() && dist::tensor("one", one, {1, 1}).has_fitting_shape());
  CHECK(!dist::tensor("one", one, {-1, -1}).has_fitting_shape() && !dist::tensor("one", one, {2}).has_fitting_shape());
  run_ranks(size, [](const dist::group &g) {
    check_values(g);
    check_works(g);
    errors_are_reported(g);
  });
  return 0;
}
