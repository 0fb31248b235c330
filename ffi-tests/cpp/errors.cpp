// Errors: as exceptions, and as results.
#include "check.hpp"

#include <stdexcept>
#include <system_error>

namespace {

static_assert(std::is_nothrow_copy_constructible_v<dist::error>);
static_assert(std::is_base_of_v<std::system_error, dist::error>);

void errors_are_thrown(const dist::group &g) {
  float x = 0;
  try {
    g.recv(x, 0, 9, dist::options{}.with_timeout(1ms));
    CHECK(false);
  } catch (const dist::error &error) {
    CHECK(error.code() == dist::errc::timeout && error.code() == std::errc::timed_out &&
          error.fatal_to_group());
    CHECK(contains(error.what(), "no message of rank 0") &&
          std::string_view(error.what()) == dist_last_error());
    CHECK(std::string_view(error.code().category().name()) == "dist");
    CHECK(error.code().message() == dist_status_string(DIST_ERR_TIMEOUT));
    const dist::error copy = error;
    CHECK(std::string_view(copy.what()) == error.what());
  }
  try {
    g.broadcast(x, 17);
    CHECK(false);
  } catch (const std::system_error &error) {
    CHECK(error.code() == std::errc::invalid_argument);
  }
  try {
    std::vector<float> three(3), two(2);
    g.all_reduce(three, two);
    CHECK(false);
  } catch (const dist::error &error) {
    CHECK(!error.fatal_to_group() && contains(error.what(), "all_reduce"));
  }
}

void errors_are_returned(const dist::group &g) {
  float x = 1;
  dist::result<void> good = g.all_reduce(x, dist::sum, {}, dist::nothrow);
  CHECK(good && good.has_value());
  good.value();
  dist::result<void> bad = g.broadcast(x, 17, {}, dist::nothrow);
  CHECK(!bad && bad.error().code == dist::errc::invalid_argument && !bad.error().message.empty());
  try {
    bad.value();
    CHECK(false);
  } catch (const dist::error &error) {
    CHECK(error.what() == bad.error().message);
  }
  dist::result<int> number = g.all_reduce_value(2, dist::sum, {}, dist::nothrow);
  CHECK(*number == 2 * g.size() && number.value() == *number && std::move(number).value_or(0) == 2 * g.size());
  CHECK(dist::result<int>(bad.error()).value_or(7) == 7);
  const dist::result<std::string> text("abc");
  CHECK(text->size() == 3 && text.value() == "abc" && *text == "abc");
  auto next = g.broadcast_value(3, 0, {}, dist::nothrow).and_then([](int v) { return dist::result<long>(v + 1L); });
  CHECK(next && *next == 4);
  auto none = dist::result<int>(bad.error()).and_then([](int v) { return dist::result<long>(v); });
  CHECK(!none);
  CHECK(g.barrier({}, dist::nothrow).and_then([] { return dist::result<int>(5); }).value() == 5);
  dist::result<dist::work> work = g.all_reduce_async(x, dist::sum, {}, dist::nothrow);
  CHECK(work && work->wait(dist::nothrow));
#ifdef __cpp_lib_expected
  const std::expected<int, dist::failure> expected = g.all_reduce_value(1, dist::sum, {}, dist::nothrow);
  CHECK(expected.value() == g.size());
  const std::expected<void, dist::failure> unexpected = g.broadcast(x, 17, {}, dist::nothrow);
  CHECK(!unexpected && unexpected.error().code == dist::errc::invalid_argument);
#endif
}

void codes_have_names() {
  CHECK(make_error_code(dist::errc::ok).value() == 0 && !std::error_code(dist::errc::ok));
  const std::pair<dist::errc, std::errc> same[] = {
      {dist::errc::unsupported, std::errc::operation_not_supported},
      {dist::errc::not_found, std::errc::no_such_file_or_directory},
      {dist::errc::aborted, std::errc::operation_canceled},
      {dist::errc::connection, std::errc::not_connected},
      {dist::errc::auth, std::errc::permission_denied},
      {dist::errc::out_of_memory, std::errc::not_enough_memory},
  };
  for (const auto &[ours, standard] : same) CHECK(std::error_code(ours) == standard);
  CHECK(std::error_code(dist::errc::mismatch) != std::errc::invalid_argument);
  const dist::failure outside{std::make_error_code(std::errc::timed_out), ""};
  CHECK(!outside.fatal_to_group());
}

}  // namespace

int main() {
  codes_have_names();
  run_ranks(2, [](const dist::group &g) {
    errors_are_returned(g);
    if (g.rank() == 1) errors_are_thrown(g);
    g.barrier();
  });
  return 0;
}
