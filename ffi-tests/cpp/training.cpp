// The sampler.
#include "check.hpp"

namespace {

using indices = std::vector<std::uint64_t>;

void ranks_take_disjoint_shares(const dist::group &g) {
  dist::sampler_options options;
  options.shuffle = false;
  dist::sampler ordered(g, 5, options);
  CHECK(ordered.size() == 3 && ordered.next(2) == (g.rank() == 0 ? indices{0, 2} : indices{1, 3}));
  CHECK(ordered.position() == 2 && ordered.next(10) == (g.rank() == 0 ? indices{4} : indices{0}) && ordered.next(1).empty());
  options.drop_last = true;
  CHECK(dist::sampler(g, 5, options).size() == 2);
}

void single_rank_takes_all() {
  dist::sampler sampler(3, 0, 10);
  CHECK((sampler.next(10) == indices{4, 5, 0, 2}));
  sampler.seek(3);
  CHECK(sampler.next(10) == indices{2} && !sampler.seek(5, dist::nothrow));
  sampler.set_epoch(1);
  CHECK((sampler.next(10) != indices{4, 5, 0, 2}));
  dist::sampler_options options;
  options.seed = 1;
  dist::sampler moved = *dist::sampler::make(3, 0, 10, options, dist::nothrow);
  sampler = std::move(moved);
  CHECK(sampler.get() != nullptr && (sampler.next(4) != indices{4, 5, 0, 2}));
  const auto refused = dist::sampler::make(2, 2, 10, {}, dist::nothrow);
  CHECK(!refused && refused.error().code == dist::errc::invalid_argument);
}

}  // namespace

int main() {
  single_rank_takes_all();
  run_ranks(2, ranks_take_disjoint_shares);
  return 0;
}
