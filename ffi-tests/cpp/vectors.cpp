// Collectives with blocks of different sizes, and byte strings.
#include "check.hpp"

namespace {

constexpr int size = 3;
using ints = std::vector<int>;
using lists = std::vector<ints>;

/// `count` elements with one value.
ints filled(int count, int value) { return ints(static_cast<std::size_t>(count), value); }

void check_blocks(const dist::group &g) {
  const int me = g.rank();
  const ints own = filled(me + 1, me);
  lists outs{ints(1), ints(2), ints(3)};
  g.all_gather_v(own, outs);
  CHECK((outs == lists{filled(1, 0), filled(2, 1), filled(3, 2)}));
  CHECK((g.all_gather_v_async(own, lists{ints(1), ints(2), ints(3)}).take() == outs));

  const dist::gathered<int> all = g.all_gather_v(own);
  CHECK((all.data == ints{0, 1, 1, 2, 2, 2}) && (all.counts == std::vector<std::size_t>{1, 2, 3}));
  CHECK(all.block(2).size == 3 && all.block(1).data[0] == 1);
  CHECK(g.all_gather_counts(own.size())[2] == 3);

  ints spread(10, -1);
  g.all_gather_v(own, spread, {1, 2, 3}, {0, 2, 7});
  CHECK((spread == ints{0, -1, 1, 1, -1, -1, -1, 2, 2, 2}));
  ints close(6);
  g.all_gather_v_async(own, close, {1, 2, 3}).wait();
  CHECK((close == ints{0, 1, 1, 2, 2, 2}));

  lists at_root = me == 1 ? lists{ints(1), ints(2), ints(3)} : lists{};
  g.gather_v(own, at_root, 1);
  CHECK(me != 1 || at_root == outs);
  g.gather_v_async(own, at_root, 1).wait();

  const lists parts = me == 0 ? lists{filled(1, 7), filled(2, 8), filled(3, 9)} : lists{};
  ints part = filled(me + 1, 0);
  g.scatter_v(parts, part, 0);
  CHECK(part == filled(me + 1, 7 + me));
  g.scatter_v_async(parts, part, 0).wait();

  const lists addends{filled(1, 1), filled(2, 1), filled(3, 1)};
  g.reduce_scatter_v(addends, part);
  CHECK(part == filled(me + 1, size));
  CHECK(g.reduce_scatter_v_async(lists(addends), ints(part.size()), dist::max).take() ==
        std::make_tuple(addends, filled(me + 1, 1)));

  // Rank i sends i + j + 1 elements to rank j.
  lists to_each, from_each;
  for (int j = 0; j < size; ++j) {
    to_each.push_back(filled(me + j + 1, 10 * me + j));
    from_each.push_back(filled(me + j + 1, 0));
  }
  g.all_to_all_v(to_each, from_each);
  for (int j = 0; j < size; ++j) CHECK(from_each[static_cast<std::size_t>(j)] == filled(me + j + 1, 10 * j + me));
  g.all_to_all_v_async(to_each, from_each).wait();
}

void refusals_are_reported(const dist::group &g) {
  const ints own(1);
  lists two{ints(1), ints(1)};
  ints out(2);
  const auto check_refused =
      [](auto outcome) { CHECK(!outcome && outcome.error().code == dist::errc::invalid_argument); };
  check_refused(g.all_gather_v(own, two, {}, dist::nothrow));
  check_refused(g.all_gather_v(own, out, {1, 1, 1}, {}, {}, dist::nothrow));
  check_refused(g.all_gather_v(own, out, {1, 1}, {}, {}, dist::nothrow));
  check_refused(g.all_gather_v(own, out, {1, 1, 0}, {0, 1}, {}, dist::nothrow));
  check_refused(g.gather_v(own, two, g.rank(), {}, dist::nothrow));
  check_refused(g.scatter_v(two, out, g.rank(), {}, dist::nothrow));
  check_refused(g.reduce_scatter_v(two, out, dist::sum, {}, dist::nothrow));
  check_refused(g.all_to_all_v(two, two, {}, dist::nothrow));
}

void check_byte_strings(const dist::group &g) {
  const std::string own = "rank " + std::to_string(g.rank());
  CHECK(g.broadcast_bytes(own, 2).view() == "rank 2");
  CHECK(g.broadcast_bytes(g.rank() == 0 ? "literal" : "", 0).str() == "literal");
  const dist::blob all = g.all_gather_bytes(own);
  CHECK(all.size() == size && all[1] == "rank 1" && all[3].empty());
  CHECK((all.strings() == std::vector<std::string>{"rank 0", "rank 1", "rank 2"}));
  const dist::blob at_root = g.gather_bytes(own, 1);
  CHECK(g.rank() == 1 ? at_root[2] == "rank 2" : at_root.empty());
  const std::vector<dist::byte_view> parts =
      g.rank() == 0 ? std::vector<dist::byte_view>{"a", "bb", "ccc"} : std::vector<dist::byte_view>{};
  CHECK(g.scatter_bytes(parts, 0).view().size() == static_cast<std::size_t>(g.rank() + 1));
  CHECK(!g.scatter_bytes({"one"}, g.rank(), {}, dist::nothrow));
  CHECK(g.broadcast_bytes_async(own, 1).take().view() == "rank 1");
  CHECK(g.all_gather_bytes_async(own).take()[0] == "rank 0");
  CHECK(g.gather_bytes_async(own, 0).take().empty() == (g.rank() != 0));
  const std::vector<int> numbers{1, 2};
  CHECK(g.broadcast_bytes(numbers, 0).view().size() == 2 * sizeof(int));
}

}  // namespace

int main() {
  run_ranks(size, [](const dist::group &g) {
    check_blocks(g);
    refusals_are_reported(g);
    check_byte_strings(g);
  });
  return 0;
}
