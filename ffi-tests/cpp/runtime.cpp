// Jobs of processes: spawn and the runtime.
#include "check.hpp"

#include <sys/wait.h>

namespace {

int rank_main(int rank, int size) {
  CHECK(!dist::is_initialized());
  dist::init_options options;
  options.timeout = 30s;
  options.connect_timeout = 30s;
  options.group_name = "job";
  options.backend = "native";
  options.backend_options = "heartbeat_ms=5000";
  dist::runtime runtime(options);
  const dist::group_ref world = runtime.world();
  CHECK(dist::is_initialized() && !dist::is_elastic_launched());
  CHECK(world == dist::world() && world.rank() == rank && world.size() == size && world.name() == "job");
  CHECK(world.all_reduce_value(1) == size);
  const auto twice = dist::runtime::init({}, dist::nothrow);
  CHECK(!twice && twice.error().code == dist::errc::already_initialized);
  dist::runtime moved = std::move(runtime);
  moved.finalize();
  CHECK(!dist::is_initialized());
  return 0;
}

void store_replaces_the_environment() {
  const dist::store meeting_place = dist::store::hash();
  dist::init_options options;
  options.store = &meeting_place;
  options.rank = 0;
  options.world_size = 1;
  const dist::runtime runtime(options);
  CHECK(runtime.world().size() == 1);
}

}  // namespace

int main() {
  CHECK(std::string_view(dist::version()) == dist_version_string());
  dist::spawn_options limits;
  limits.join_timeout = 60s;
  limits.grace = 1s;
  dist::spawn(3, [](int rank) { return rank_main(rank, 3); }, limits);
  dist::spawn(1, [](int) { const dist::runtime runtime; });
  const auto outcome = dist::spawn(2, [](int rank) { return rank; }, limits, dist::nothrow);
  CHECK(!outcome && outcome.error().code == dist::errc::peer_failed &&
        contains(outcome.error().message, "rank 1"));
  // The error of the child is in the error of the parent.
  const auto no_world = dist::spawn(1, [](int) { dist::world().barrier(); }, limits, dist::nothrow);
  CHECK(!no_world && contains(no_world.error().message, "dist_init"));
  store_replaces_the_environment();
  return 0;
}
