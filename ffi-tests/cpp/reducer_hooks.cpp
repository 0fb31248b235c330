// Hooks of the reducer: those of the library by name, and function objects of the program.
#include "check.hpp"

#include <atomic>
#include <cmath>
#include <memory>
#include <new>
#include <stdexcept>
#include <system_error>

namespace {

using floats = std::vector<float>;

constexpr std::size_t rows = 16, columns = 32;

/// A matrix and a bias, with gradients that depend on the rank.
struct model {
  floats weight = floats(rows * columns);
  floats bias = floats(10);

  std::vector<dist::param> params() {
    return {dist::param("weight", weight).with_shape({rows, columns}), dist::param("bias", bias)};
  }
};

/// Runs a step.
dist::result<dist::vote> run_step(dist::reducer &r, const dist::group &g) {
  auto step = r.step();
  for (std::size_t p = 0; p < 2; ++p) {
    const auto gradient = r.grad<float>(p);
    for (std::size_t i = 0; i < gradient.size; ++i) {
      gradient[i] = std::sin(static_cast<float>(i + p)) + static_cast<float>(g.rank());
    }
    step.ready(p);
  }
  return step.commit(dist::vote::commit, dist::nothrow);
}

double max_difference(const dist::reducer &a, const dist::reducer &b) {
  double largest = 0;
  for (std::size_t p = 0; p < 2; ++p) {
    const auto x = a.result<float>(p), y = b.result<float>(p);
    for (std::size_t i = 0; i < x.size; ++i) largest = std::fmax(largest, std::fabs(static_cast<double>(x[i] - y[i])));
  }
  return largest;
}

dist::reducer_options with_hook(const char *hook, const char *settings = "") {
  dist::reducer_options options;
  options.hook = hook;
  options.hook_settings = settings;
  return options;
}

dist::reducer_options with_function(dist::hook_function function) {
  dist::reducer_options options = with_hook("mine");
  options.hook_function = std::move(function);
  return options;
}

/// Each hook of the library gives nearly the results of no hook, and sends fewer bytes.
void hooks_are_close_to_no_hook(const dist::group &g) {
  struct expectation {
    const char *hook, *settings;
    double tolerance, sent;
  };
  const expectation all[] = {
      {"all_reduce", "", 0, 1}, {"f16", "", 2e-3, 0.5}, {"bf16", "", 2e-2, 0.5}, {"int8", "block=128", 2e-2, 0.27}};
  model plain, hooked;
  dist::reducer without(g, plain.params());
  CHECK(run_step(without, g) && without.stats().bytes_saved == 0);
  for (const expectation &each : all) {
    dist::reducer with(g, hooked.params(), with_hook(each.hook, each.settings));
    CHECK(run_step(with, g) && max_difference(with, without) <= each.tolerance);
    const dist::reducer_stats stats = with.stats();
    const double sent = 1 - static_cast<double>(stats.bytes_saved) / static_cast<double>(stats.bytes_reduced);
    CHECK(sent > each.sent - 0.3 && sent <= each.sent && with.check(dist::model_part::grads).empty());
  }
  // A rank 1 matrix needs no more than its factors.
  dist::reducer compressed(g, hooked.params(), with_hook("powersgd", "start=0"));
  CHECK(run_step(compressed, g) && compressed.stats().bytes_saved > compressed.stats().bytes_reduced * 4 / 5);
  dist::reducer alone(g, hooked.params(), with_hook("none"));
  CHECK(run_step(alone, g) && alone.stats().bytes_saved == alone.stats().bytes_reduced);
  CHECK(alone.result<float>(1)[0] == std::sin(1.0F) + static_cast<float>(g.rank()));
  const auto unknown = dist::reducer::make(g, hooked.params(), with_hook("int4"), dist::nothrow);
  CHECK(!unknown && contains(unknown.error().message, "int4"));
}

/// A function object that does what the reducer does itself. It has the figures of its calls.
struct sum_over_ranks {
  std::shared_ptr<std::atomic<int>> calls;

  void operator()(dist::group_ref group, dist::hooked_bucket &bucket) {
    const auto gradients = bucket.elements<float>();
    CHECK(bucket.dtype == DIST_F32 && bucket.params.size == bucket.offsets.size && bucket.params.size > 0);
    CHECK(bucket.index < bucket.buckets && gradients.size == bucket.count && gradients.data == bucket.data);
    CHECK(bucket.bytes_sent == gradients.size * sizeof(float));
    const auto wrong = bucket.elements<double>(dist::nothrow);
    CHECK(!wrong && wrong.error().code == dist::errc::invalid_argument && contains(wrong.error().message, "f32"));
    group.all_reduce(gradients, dist::sum);
    bucket.bytes_sent /= 2;
    ++*calls;
  }
};

void function_object_reduces(const dist::group &g) {
  model plain, hooked;
  const auto calls = std::make_shared<std::atomic<int>>(0);
  {
    dist::reducer without(g, plain.params());
    dist::reducer with(g, hooked.params(), with_function(sum_over_ranks{calls}));
    CHECK(calls.use_count() == 2);
    for (int i = 1; i <= 3; ++i) {
      // The function stays where it is when the reducer moves.
      dist::reducer moved = std::move(with);
      CHECK(run_step(without, g) && run_step(moved, g) && max_difference(moved, without) == 0);
      const dist::reducer_stats stats = moved.stats();
      CHECK(stats.bytes_saved == stats.bytes_reduced / 2);
      with = std::move(moved);
    }
    CHECK(*calls >= 3);
  }
  CHECK(calls.use_count() == 1);
}

/// A function may return a result. With another divisor, and with the end of the step in the
/// background.
void function_may_return_a_result(const dist::group &g) {
  model plain, hooked;
  dist::reducer_options options = with_function([](dist::group_ref group, dist::hooked_bucket &bucket) {
    const auto gradients = bucket.elements<float>(dist::nothrow);
    return group.all_reduce(*gradients, dist::sum, {}, dist::nothrow);
  });
  CHECK(options.hook_function && !dist::hook_function());
  options.divide = dist::divide::none;
  dist::reducer with(g, hooked.params(), options);
  options = {};
  options.divide = dist::divide::none;
  dist::reducer without(g, plain.params(), options);
  CHECK(run_step(without, g));
  auto step = with.step();
  for (std::size_t p = 0; p < 2; ++p) {
    for (float &each : with.grad<float>(p)) each = 1;
    step.ready(p);
  }
  dist::step_work work = step.commit_async();
  CHECK(work.take() == dist::vote::commit && with.result<float>(1)[9] == static_cast<float>(g.size()));
}

/// All ranks are in a hook when one of them fails. The others may learn of that here.
void wait_for_all(dist::group_ref group) { static_cast<void>(group.barrier({}, dist::nothrow).has_value()); }

/// The failure of one rank's function fails the step on all ranks. That rank's error has the status
/// and the text.
void check_failing_function(const dist::group &g, dist::hook_function function, dist::errc code, const char *text) {
  model m;
  const bool is_failing = g.rank() == 1;
  dist::reducer r(g, m.params(), with_function([=](dist::group_ref group, dist::hooked_bucket &bucket) mutable {
                    if (bucket.step == 1) wait_for_all(group);
                    if (is_failing && bucket.step == 1) return function(group, bucket);
                    return group.all_reduce(bucket.elements<float>(), dist::sum, {}, dist::nothrow);
                  }));
  CHECK(run_step(r, g));
  const auto outcome = run_step(r, g);
  CHECK(!outcome);
  if (is_failing) {
    if (outcome.error().code != code || !contains(outcome.error().message, text)) {
      std::fprintf(stderr, "%s\n", outcome.error().message.c_str());
    }
    CHECK(outcome.error().code == code && contains(outcome.error().message, text));
    CHECK(contains(outcome.error().message, "the hook \"mine\""));
  }
}

using bucket_ref = dist::hooked_bucket &;

void thrown_error_fails_the_step(const dist::group &g) {
  check_failing_function(
      g, [](dist::group_ref group, bucket_ref bucket) { group.broadcast(bucket.elements<float>(), 99); },
      dist::errc::invalid_argument, "99");
}

void thrown_system_error_fails_the_step(const dist::group &g) {
  check_failing_function(
      g, [](dist::group_ref, bucket_ref) { throw std::system_error(make_error_code(dist::errc::backend), "no codec"); },
      dist::errc::backend, "no codec");
}

void other_exception_fails_the_step(const dist::group &g) {
  check_failing_function(
      g, [](dist::group_ref, bucket_ref) { throw std::runtime_error("the codec has no table"); }, dist::errc::system,
      "the failure of the hook: the codec has no table");
}

void bad_alloc_fails_the_step(const dist::group &g) {
  check_failing_function(
      g, [](dist::group_ref, bucket_ref) { throw std::bad_alloc(); }, dist::errc::out_of_memory, "bad_alloc");
}

void thrown_number_fails_the_step(const dist::group &g) {
  check_failing_function(
      g, [](dist::group_ref, bucket_ref) { throw 7; }, dist::errc::system, "not a std::exception");
}

void returned_failure_fails_the_step(const dist::group &g) {
  check_failing_function(
      g,
      [](dist::group_ref, bucket_ref) {
        return dist::result<void>(dist::failure{make_error_code(dist::errc::aborted), "the codec gave up"});
      },
      dist::errc::aborted, "the codec gave up");
}

/// The error of a work has the text, too. A later failure does not repeat it.
void background_failure_keeps_its_text(const dist::group &g) {
  model m;
  dist::reducer r(g, m.params(), with_function([&g](dist::group_ref group, bucket_ref) {
                    wait_for_all(group);
                    if (g.rank() == 0) throw std::runtime_error("no memory of the device");
                  }));
  auto step = r.step();
  step.ready({0, 1});
  auto work = step.commit_async(dist::vote::commit, dist::nothrow);
  const auto outcome = work ? work->take(dist::nothrow) : dist::result<dist::vote>(work.error());
  CHECK(!outcome && contains(outcome.error().message, "no memory of the device") == (g.rank() == 0));
  const auto later = r.end(dist::vote::commit, dist::nothrow);
  CHECK(!later && !contains(later.error().message, "no memory of the device"));
}

void refusals_are_reported(const dist::group &g) {
  model m;
  dist::reducer_options options = with_function([](dist::group_ref, bucket_ref) {});
  options.hook.clear();
  const auto unnamed = dist::reducer::make(g, m.params(), options, dist::nothrow);
  CHECK(!unnamed && unnamed.error().code == dist::errc::invalid_argument && contains(unnamed.error().message, "name"));
  options = {};
  options.share_grads = true;
  CHECK(!dist::reducer::make(g, m.params(), options, dist::nothrow));
  options = with_hook("int8");
  options.sharded = true;
  CHECK(!dist::reducer::make(g, m.params(), options, dist::nothrow));
}

}  // namespace

int main() {
  run_ranks(2, [](const dist::group &g) {
    hooks_are_close_to_no_hook(g);
    for (int i = 0; i < 5; ++i) function_object_reduces(g);
    function_may_return_a_result(g);
    refusals_are_reported(g);
  });
  run_ranks(3, thrown_error_fails_the_step, "error");
  run_ranks(3, thrown_system_error_fails_the_step, "system_error");
  run_ranks(3, other_exception_fails_the_step, "runtime_error");
  run_ranks(3, bad_alloc_fails_the_step, "bad_alloc");
  run_ranks(3, thrown_number_fails_the_step, "number");
  run_ranks(3, returned_failure_fails_the_step, "failure");
  run_ranks(2, background_failure_keeps_its_text, "background");
  return 0;
}
