// The reducer: parameters, steps as scopes, votes, buckets, accumulation, checks, and the forms
// without exceptions.
#include "check.hpp"

#include <atomic>
#include <cmath>
#include <memory>
#include <stdexcept>

namespace {

using floats = std::vector<float>;

/// A model of two layers. The gradient of the first is memory of the caller.
struct model {
  floats first, first_grad, second;
  double mean;

  explicit model(int rank)
      : first(100, static_cast<float>(rank)), first_grad(100), second(50, static_cast<float>(rank)), mean(rank) {}

  std::vector<dist::param> params() {
    return {{"first", first, first_grad},
            dist::param("second", dist::view(second.data(), second.size())).with_shape({5, 10}).with_tag(1),
            dist::param("mean", mean).with_role(dist::param_role::buffer)};
  }
};

void fill(const dist::buffer<float> &gradient, float value) {
  for (float &each : gradient) each = value;
}

bool is_filled_with(const dist::buffer<float> &values, float expected) {
  for (const float each : values) {
    if (each != expected) return false;
  }
  return true;
}

/// Writes both gradients.
void write_gradients(const dist::reducer &r, float value) {
  fill(r.grad<float>(0), value);
  fill(r.grad<float>(1), 10 * value);
}

void steps_average_gradients(const dist::group &g) {
  model m(g.rank() + 1);
  dist::reducer r(g, m.params());
  CHECK(r.get() != nullptr && r.size() == 3 && m.params()[1].name() == "second");
  CHECK(m.params()[0].get().count == 100 && m.params()[0].has_fitting_grad());
  CHECK(m.first[99] == 1 && m.second[49] == 1 && m.mean == 1);
  CHECK(r.grad<float>(0).data == m.first_grad.data() && r.grad<float>(1).size == 50);
  for (int i = 0; i < 3; ++i) {
    auto step = r.step();
    CHECK(step.get() == r.get());
    const float own = static_cast<float>(g.rank() + i);
    fill(r.grad<float>(1), 10 * own);
    step.ready(1);
    fill(r.grad<float>(0), own);
    step.ready({0});
    CHECK(step.commit() == dist::vote::commit);
    const float average = 0.5F + static_cast<float>(i);
    CHECK(is_filled_with(r.result<float>(0), average) && is_filled_with(r.result<float>(1), 10 * average));
  }
  const dist::reducer_stats stats = r.stats();
  CHECK(stats.steps == 3 && stats.buckets == 2 && stats.bytes_reduced >= 600 && stats.step.count() > 0);
  CHECK(contains(r.layout(), "second") && contains(r.describe(), "\"steps\":3"));
}

void steps_without_a_scope(const dist::group &g) {
  model m(0);
  dist::reducer_options options;
  options.divide = dist::divide::weighted;
  options.missing = dist::missing::skip;
  options.name = "weighted";
  dist::reducer r(g, m.params(), options);
  // Weights 1 and 3.
  r.begin(1 + 2 * g.rank());
  write_gradients(r, static_cast<float>(4 * g.rank()));
  r.ready(std::vector<std::size_t>{1, 0});
  CHECK(r.end() == dist::vote::commit && is_filled_with(r.result<float>(0), 3));
  r.begin(1);
  r.unused(0);
  r.ready(1);
  dist::step_work work = r.end_async(dist::vote::skip);
  CHECK(work.take() == dist::vote::skip && is_filled_with(r.result<float>(0), 3));
}

void gradients_accumulate(const dist::group &g) {
  model m(0);
  dist::reducer r(g, m.params());
  write_gradients(r, 0);
  // Rank 1 has one more step without communication.
  for (int i = 0; i <= g.rank(); ++i) {
    auto local = r.accumulate();
    for (float &each : r.grad<float>(0)) each += 1;
    local.ready(0);
  }
  auto step = r.step();
  step.ready({0, 1});
  dist::step moved = std::move(step);
  dist::step_work work = moved.commit_async();
  CHECK(work.take() == dist::vote::commit && is_filled_with(r.result<float>(0), 1.5F));
}

/// An exception leaves the step of rank 1: rank 0 learns of it from the vote, and the next step
/// works.
void exception_votes_for_an_error(const dist::group &g) {
  model m(0);
  dist::reducer r(g, m.params());
  for (int i = 0; i < 3; ++i) {
    try {
      auto step = r.step();
      write_gradients(r, 1);
      step.ready(1);
      if (g.rank() == 1) throw std::runtime_error("a failure of the program");
      step.ready(0);
      const dist::vote votes = step.commit(dist::vote::skip | dist::vote{256});
      CHECK(has_vote(votes, dist::vote::error) && has_vote(votes, dist::vote{256}) && !has_vote(votes, dist::vote::non_finite));
    } catch (const std::runtime_error &) {
      CHECK(g.rank() == 1);
    }
    write_gradients(r, 2);
    auto step = r.step();
    step.ready({0, 1});
    CHECK(step.commit() == dist::vote::commit && is_filled_with(r.result<float>(1), 20));
    // After commit the scope is over.
    CHECK(!step.ready(0, dist::nothrow) && !step.commit(dist::vote::commit, dist::nothrow));
  }
}

void bucket_callback_is_called(const dist::group &g) {
  model m(0);
  const auto token = std::make_shared<int>(0);
  std::atomic<int> called = 0;
  {
    dist::reducer r(g, m.params());
    r.on_bucket([token, &called, &m](const dist::bucket &b) {
      CHECK(b.index < b.buckets && b.buckets == 2 && b.step == 0 && b.dtype == DIST_F32 && b.params.size == 1);
      // The gradient of parameter 0 is memory of the caller.
      CHECK((b.params[0] == 0) == (b.data == nullptr) && b.offsets.size == (b.data == nullptr ? 0U : 1U));
      const float *gradient = b.data == nullptr ? m.first_grad.data() : static_cast<const float *>(b.data) + b.offsets[0];
      CHECK(gradient[0] == (b.params[0] == 0 ? 0.5F : 5.0F) && (b.data == nullptr || b.count >= 50));
      ++called;
    });
    CHECK(token.use_count() == 2);
    for (int i = 0; i < 2; ++i) {
      write_gradients(r, static_cast<float>(g.rank()));
      dist::reducer moved = std::move(r);
      auto step = moved.step();
      step.ready({0, 1});
      CHECK(step.commit() == dist::vote::commit && called == 2);
      r = std::move(moved);
      r.on_bucket(nullptr);
    }
  }
  CHECK(called == 2 && token.use_count() == 1);
  // The destructor of the reducer waits for the functions of a detached step.
  std::atomic<bool> is_alive = true;
  {
    dist::reducer r(g, m.params());
    r.on_bucket([&is_alive, n = std::make_unique<int>(1)](const dist::bucket &) {
      std::this_thread::sleep_for(20ms);
      CHECK(is_alive && *n == 1);
    });
    auto step = r.step();
    step.ready({0, 1});
    step.commit_async().detach();
  }
  is_alive = false;
}

void check_finds_differences(const dist::group &g) {
  model m(0);
  dist::reducer_options options;
  options.fixed_layout = true;
  options.canonical = true;
  options.bucket_bytes = 1000;
  options.first_bucket_bytes = 100;
  options.timeout = 20s;
  dist::reducer r(g, m.params(), options);
  CHECK(r.check().empty());
  m.second[7] = static_cast<float>(g.rank());
  const auto differences = r.check(dist::model_part::params);
  CHECK(differences.size() == 1 && contains(differences[0], "second"));
  r.broadcast(1);
  CHECK(r.check(dist::model_part::params | dist::model_part::buffers).empty() && m.second[7] == 1);
  r.broadcast(0, dist::model_part::params);
  write_gradients(r, 3);
  auto step = r.step();
  step.ready({0, 1});
  step.commit();
  CHECK(r.check(dist::model_part::grads).empty());
  const double norm = std::sqrt(100.0 * 9 + 50.0 * 900);
  CHECK(std::abs(r.clip(1) - norm) < 1e-3 && std::abs(r.clip(INFINITY) - 1) < 1e-3 && r.clip(INFINITY, INFINITY) < 1);
  options.layout = r.layout();
  CHECK(dist::reducer(g, m.params(), options).layout() == options.layout);
}

/// Rank 1 has fewer steps.
void ranks_may_have_fewer_steps(const dist::group &g) {
  model m(0);
  dist::reducer_options options;
  options.uneven = true;
  options.broadcast_buffers = true;
  dist::reducer r(g, m.params(), options);
  for (int i = g.rank(); i < 3; ++i) {
    auto step = r.step();
    write_gradients(r, 2);
    step.ready({0, 1});
    CHECK(step.commit() == dist::vote::commit && is_filled_with(r.result<float>(0), 2));
  }
  CHECK(r.join() == static_cast<std::uint64_t>(g.rank()));
}

void reducer_moves_to_another_group(const dist::group &g) {
  model m(0);
  dist::reducer_options options;
  options.retryable = true;
  dist::reducer r(g, m.params(), options);
  const dist::group pair = *g.subgroup({0, 1});
  r.regroup(pair);
  write_gradients(r, static_cast<float>(g.rank()));
  auto step = r.step();
  step.ready({0, 1});
  CHECK(step.commit() == dist::vote::commit && is_filled_with(r.result<float>(0), 0.5F));
  CHECK(is_filled_with(r.grad<float>(1), 10 * static_cast<float>(g.rank())));
}

/// Rank 2 leaves. The others repeat the step with the same gradients.
void survivors_repeat_the_step(const dist::group &g) {
  model m(0);
  dist::reducer_options options;
  options.retryable = true;
  dist::reducer r(g, m.params(), options);
  if (g.rank() == 2) return;
  write_gradients(r, static_cast<float>(g.rank()));
  auto step = r.step();
  step.ready({0, 1});
  const auto outcome = step.commit(dist::vote::commit, dist::nothrow);
  CHECK(!outcome && outcome.error().fatal_to_group());
  const dist::group rest = g.shrink();
  r.regroup(rest);
  CHECK(r.end() == dist::vote::commit && is_filled_with(r.result<float>(0), 0.5F) &&
        is_filled_with(r.result<float>(1), 5));
  CHECK(r.stats().steps == 1 && r.stats().retries == 1);
}

/// Gradients of another type than the values.
void gradient_type_may_differ(const dist::group &g) {
  std::vector<double> values(3, 1);
  dist::reducer r(g, {dist::param("w", values).with_grad_type<float>()});
  fill(r.grad<float>(0), 4);
  auto step = r.step();
  step.ready(0);
  CHECK(step.commit() == dist::vote::commit && r.result<float>(0)[2] == 4);
  const auto wrong = r.grad<double>(0, dist::nothrow);
  CHECK(!wrong && contains(wrong.error().message, "f32"));
}

void refusals_are_reported(const dist::group &g) {
  model m(0);
  floats shorter(99);
  const auto unfit = dist::reducer::make(g, {{"w", m.first, shorter}}, {}, dist::nothrow);
  CHECK(!unfit && unfit.error().code == dist::errc::invalid_argument && contains(unfit.error().message, "\"w\""));
  const auto on_device = dist::reducer::make(g, {dist::param("w", m.first).with_device(0)}, {}, dist::nothrow);
  CHECK(!on_device && on_device.error().code == dist::errc::unsupported);
  auto made = dist::reducer::make(g, m.params(), {}, dist::nothrow);
  CHECK(made.has_value());
  dist::reducer &r = *made;
  CHECK(!r.grad<float>(2, dist::nothrow) && !r.result<float>(9, dist::nothrow) && r.grad<float>(1, dist::nothrow));
  CHECK(!r.ready(0, dist::nothrow) && !r.end(dist::vote::commit, dist::nothrow) && !r.clip(1, 2, dist::nothrow));
  CHECK(!r.begin(-1, 0, dist::nothrow) && !r.step(-1, dist::nothrow) && !r.join(dist::nothrow));
  CHECK(!r.broadcast(7, dist::model_part::params, dist::nothrow) && r.check(dist::model_part::params, dist::nothrow));
  CHECK(r.on_bucket(nullptr, dist::nothrow) && r.layout(dist::nothrow) && r.stats(dist::nothrow) && r.describe(dist::nothrow));
  {
    auto step = r.step(1, dist::nothrow);
    CHECK(step && step->ready({0}, dist::nothrow) && !step->ready(0, dist::nothrow) && !step->unused(5, dist::nothrow));
    // Parameter 1 is not marked.
    const auto outcome = step->commit(dist::vote::commit, dist::nothrow);
    CHECK(!outcome && contains(outcome.error().message, "\"second\""));
  }
  auto step = r.step(1, dist::nothrow);
  auto work = step->commit_async(dist::vote::non_finite, dist::nothrow);
  CHECK(work && *work->take(dist::nothrow) == dist::vote::non_finite);
  CHECK(r.accumulate(dist::nothrow));
}

void sparse_gradients_are_reduced(const dist::group &g) {
  floats table(40);
  dist::reducer r(g, {dist::param("table", table).with_sparse_rows({10, 4})});
  auto step = r.step();
  const std::vector<std::int64_t> own{9, g.rank()};
  const floats values(8, static_cast<float>(g.rank() + 1));
  step.ready_rows(0, own, values);
  CHECK(!step.ready_rows(0, own, values, dist::nothrow));
  CHECK(step.commit() == dist::vote::commit);
  const auto reduced = r.rows<float>(0);
  CHECK(reduced.rows.size == 3 && reduced.rows[0] == 0 && reduced.rows[2] == 9 && reduced.values.size == 12);
  CHECK(reduced.values[0] == 0.5F && reduced.values[4] == 1 && reduced.values[11] == 1.5F);
  CHECK(!r.rows<double>(0, dist::nothrow) && !r.grad<float>(0, dist::nothrow));
}

}  // namespace

int main() {
  run_ranks(2, [](const dist::group &g) {
    steps_average_gradients(g);
    steps_without_a_scope(g);
    gradients_accumulate(g);
    for (int i = 0; i < 20; ++i) exception_votes_for_an_error(g);
    for (int i = 0; i < 5; ++i) bucket_callback_is_called(g);
    check_finds_differences(g);
    ranks_may_have_fewer_steps(g);
    reducer_moves_to_another_group(g);
    gradient_type_may_differ(g);
    sparse_gradients_are_reduced(g);
    refusals_are_reported(g);
  });
  run_ranks(3, survivors_repeat_the_step, "lost_rank");
  CHECK(dist::stop_callbacks(10s));
  return 0;
}
