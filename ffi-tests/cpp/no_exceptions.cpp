// Compiled with -fno-exceptions and -fno-rtti: every function returns a result.
#include "check.hpp"

#include <memory>

namespace {

void call_everything(const dist::group &g) {
  std::vector<float> x{1};
  dist::result<void> done = g.all_reduce(x);
  CHECK(done && x[0] == static_cast<float>(g.size()));
  dist::result<dist::work> w = g.all_reduce_async(x);
  CHECK(w && w->wait());
  auto owned = g.all_reduce_async(std::vector<float>{2});
  CHECK(owned && owned->take()->at(0) == static_cast<float>(2 * g.size()));
  const dist::result<std::vector<int>> all = g.all_gather(g.rank());
  CHECK(all && all->size() == static_cast<std::size_t>(g.size()));
  const auto refused = g.broadcast(x, 17);
  CHECK(!refused && refused.error().code == dist::errc::invalid_argument);
  auto half = g.split(0);
  CHECK(half && half->has_value() && (*half)->barrier());
  dist::outer_options every_step;
  every_step.every = 1;
  every_step.optimizer = "mine";
  every_step.function = [](const dist::outer_update &update) { update.global[0] -= update.pseudo_grad[0]; };
  auto outer = dist::outer::make(g, {{"x", x}}, every_step);
  CHECK(outer && outer->step() && outer->global(0)->size == 1 && outer->load(outer->save()->view(), 0));
  auto batch = dist::batch::begin();
  CHECK(batch && g.all_reduce(x) && batch->run());
  CHECK(g.broadcast_bytes("x", 0)->view() == "x");
  auto reducer = dist::reducer::make(g, {{"x", x}});
  auto step = reducer->step();
  CHECK(reducer && step && reducer->grad<float>(0)->size == 1 && step->ready(0) && step->commit());
  dist::shard_options states;
  states.states = {"m"};
  auto shard = dist::shard::make(*reducer, states);
  CHECK(shard && shard->ranges() && shard->state(0) && shard->gather() && !shard->state(1));
  dist::reducer_options hooked;
  hooked.hook = "mine";
  hooked.hook_function = [&g](dist::group_ref group, dist::hooked_bucket &bucket) -> dist::result<void> {
    // In the second step all ranks are in the hook before one of them fails.
    const auto waited = bucket.step == 1 ? group.barrier() : dist::result<void>();
    if (!waited) return waited;
    if (bucket.step == 1 && g.rank() == 0) return dist::failure{make_error_code(dist::errc::backend), "no codec"};
    return group.all_reduce(*bucket.elements<float>(), dist::sum);
  };
  auto with_hook = dist::reducer::make(g, {{"x", x}}, hooked);
  CHECK(with_hook && with_hook->begin() && with_hook->ready(0) && with_hook->end());
  dist::vector<float> v(100, 1, dist::allocator<float>(g));
  CHECK(g.all_reduce(v));
  // The hook fails in the second step, and the group fails with it.
  CHECK(with_hook->begin() && with_hook->ready(0));
  const auto outcome = with_hook->end();
  CHECK(!outcome && contains(outcome.error().message, "no codec") == (g.rank() == 0));
}

}  // namespace

int main() {
  const auto no_world = dist::runtime::init({"", "tcp://127.0.0.1:1?rank=0"});
  CHECK(!no_world);
  const auto store = dist::store::hash();
  CHECK(store && store->set("a", "b") && *store->get("a") == "b");
  run_ranks(2, call_everything);
  return 0;
}
