// Messages: values, ranges, structs and byte strings, with status and probe.
#include "check.hpp"

namespace {

struct point {
  double x, y, z;
};

void values_are_sent(const dist::group &g) {
  const int other = 1 - g.rank();
  if (g.rank() == 0) {
    g.send(std::vector<int>{1, 2, 3}, 1, 7);
    g.send(point{1, 2, 3}, 1);
    g.send(2.5F, 1);
    g.send(4, 1, 0, dist::options{}.with_synchronous());
    g.send_async(std::vector<int>{4}, 1).take();
  } else {
    std::vector<int> into(5);
    const dist::recv_status status = g.recv(into);
    CHECK(status.source == 0 && status.tag == 7 && status.count == 3 && status.dtype == DIST_I32 && into[2] == 3);
    CHECK(g.recv_value<point>(0).z == 3);
    CHECK(g.recv_value<float>() == 2.5F);
    CHECK(g.recv_value<int>(dist::any_source, dist::any_tag) == 4);
    auto work = g.recv_async(std::vector<int>(2), 0);
    work.wait();
    CHECK(work.source() == 0 && work.tag() == 0 && work.received_count() == 1 && work.take()[0] == 4);
  }
  int own = g.rank(), received = -1;
  CHECK(g.sendrecv(own, other, received, other, 3, 3).tag == 3 && received == other);
  g.sendrecv(own, other, own, other);
  CHECK(own == other);
  CHECK(g.sendrecv_async(std::vector<int>{5}, other, std::vector<int>(1), other).take() ==
        std::make_tuple(std::vector<int>{5}, std::vector<int>{5}));
}

void byte_strings_are_sent(const dist::group &g) {
  if (g.rank() == 0) {
    g.send_bytes("text", 1);
    g.send_bytes_async(std::string_view("more"), 1, 2).wait();
    g.send_bytes("third", 1);
  } else {
    const dist::received_bytes first = g.recv_bytes(0, 0);
    CHECK(first.bytes.view() == "text" && first.status.count == 4);
    CHECK(g.recv_bytes(0, 2).bytes.str() == "more");
    CHECK(g.recv_bytes_async(0).take().view() == "third");
  }
}

void probes_find_messages(const dist::group &g) {
  if (g.rank() == 0) {
    for (int i = 0; i < 4; ++i) g.send(std::vector<int>(static_cast<std::size_t>(i + 1), i), 1, i);
    g.barrier();
    return;
  }
  dist::message first = g.probe(0, 0);
  CHECK(first.status().count == 1 && first.status().source == 0);
  std::vector<int> into(4);
  CHECK(first.receive(into).count == 1);
  { const dist::message given_back = g.probe(0, 1); }
  dist::message again = g.probe(0, 1);
  dist::message moved(std::move(again));
  CHECK(moved.receive_async(std::vector<int>(2)).take()[1] == 1);
  CHECK(g.recv(into, 0, 3).count == 4);
  const auto seen = g.peek(0, 2);
  CHECK(seen && seen->count == 3);
  auto found = g.try_probe(0, 2);
  CHECK(found && !g.try_probe(0, 2) && !g.peek());
  std::vector<int> too_short(1);
  const auto refused = found->receive(too_short, {}, dist::nothrow);
  CHECK(!refused && refused.error().code == dist::errc::mismatch);
  CHECK(found->receive(into).count == 3);
  g.barrier();
}

}  // namespace

int main() {
  run_ranks(2, [](const dist::group &g) {
    values_are_sent(g);
    byte_strings_are_sent(g);
    probes_find_messages(g);
  });
  return 0;
}
