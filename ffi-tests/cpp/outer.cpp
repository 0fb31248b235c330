// The outer optimizer: averages, functions, votes, fragments, checkpoints, groups that change, and
// the forms without exceptions.
#include "check.hpp"

#include <array>
#include <atomic>
#include <cmath>
#include <memory>
#include <optional>

namespace {

using floats = std::vector<float>;

/// A rank's copy of a model of two parameters. Each rank descends with the gradient of its own
/// samples.
struct trainer {
  floats weights = floats(40);
  floats biases = floats(3);

  trainer() {
    for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = std::sin(static_cast<float>(i));
    for (std::size_t i = 0; i < biases.size(); ++i) biases[i] = static_cast<float>(i);
  }

  std::vector<dist::param> params() { return {{"weights", weights}, {"biases", biases}}; }

  /// A step with the mean gradient of the ranks from `first` on.
  void run_sgd_step(int first, int ranks = 1) {
    run_sgd_step(weights, first, ranks);
    run_sgd_step(biases, first, ranks);
  }

  bool operator==(const trainer &other) const { return weights == other.weights && biases == other.biases; }
  bool operator!=(const trainer &other) const { return !(*this == other); }

 private:
  static void run_sgd_step(floats &values, int first, int ranks) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      float gradient = 0;
      for (int rank = first; rank < first + ranks; ++rank) {
        gradient += std::tanh(values[i] - static_cast<float>(rank)) / static_cast<float>(ranks);
      }
      values[i] -= 0.25F * gradient;
    }
  }
};

bool is_near(float a, float b) { return std::abs(a - b) < 1e-5F; }

bool are_near(const floats &a, const floats &b) {
  bool result = a.size() == b.size();
  for (std::size_t i = 0; result && i < a.size(); ++i) result = is_near(a[i], b[i]);
  return result;
}

floats copy_values(const dist::buffer<float> &values) { return {values.begin(), values.end()}; }

bool is_filled_with(const dist::buffer<float> &values, float expected) {
  for (const float each : values) {
    if (each != expected) return false;
  }
  return true;
}

/// Whether all ranks have the same values.
bool is_equal_on_all(dist::group_ref g, const floats &values) { return g.all_equal(values); }

dist::outer_options averaging_options(std::uint64_t every = 1) {
  dist::outer_options options;
  options.every = every;
  options.optimizer = "average";
  return options;
}

/// With an average after each step, the ranks train as one process with the samples of all ranks.
void average_equals_one_process(const dist::group &g) {
  trainer t, together;
  // All ranks get the values of rank 0.
  if (g.rank() == 1) t.weights[5] = 100;
  dist::outer outer(g, t.params(), averaging_options());
  CHECK(outer.get() != nullptr && t == together);
  for (int i = 0; i < 30; ++i) {
    t.run_sgd_step(g.rank());
    const dist::outer_step done = outer.step();
    CHECK(done.fragment == std::optional<std::size_t>(0) && done.votes == dist::vote::commit);
    together.run_sgd_step(0, g.size());
    CHECK(are_near(t.weights, together.weights) && are_near(t.biases, together.biases));
  }
  CHECK(copy_values(outer.global(0)) == t.weights && copy_values(outer.global(1)) == t.biases);
  CHECK(outer.state(0).data == nullptr && outer.state(1).size == 0);
  const dist::outer_stats stats = outer.stats();
  CHECK(stats.steps == 30 && stats.updates == 30 && stats.restores == 0 && stats.communication.count() > 0);
  CHECK(stats.bytes_reduced >= 30 * 43 * sizeof(float) && stats.bytes_saved == 0);
}

/// A function object gives the bits of "average", and lives as long as the outer optimizer.
void function_object_averages(const dist::group &g) {
  trainer t, built_in;
  const auto token = std::make_shared<int>(0);
  std::array<std::atomic<int>, 2> calls{};
  {
    dist::outer_options options = averaging_options();
    dist::outer reference(g, built_in.params(), options);
    options.optimizer = "mine";
    options.function = [token, &calls](const dist::outer_update &update) {
      const std::size_t count = update.param == 0 ? 40 : 3;
      CHECK(update.global.size == count && update.pseudo_grad.size == count && update.state.size == count);
      // The state has zeros at first.
      CHECK(is_filled_with(update.state, static_cast<float>(calls.at(update.param)++)));
      for (std::size_t i = 0; i < count; ++i) {
        update.global[i] -= update.pseudo_grad[i];
        update.state[i] += 1;
      }
    };
    dist::outer outer(g, t.params(), options);
    CHECK(token.use_count() == 3);
    options.function = nullptr;
    CHECK(token.use_count() == 2);
    for (int i = 0; i < 10; ++i) {
      dist::outer moved = std::move(outer);
      CHECK(outer.get() == nullptr);
      t.run_sgd_step(g.rank());
      built_in.run_sgd_step(g.rank());
      moved.step();
      reference.step();
      CHECK(t == built_in && is_filled_with(moved.state(0), static_cast<float>(i + 1)));
      outer = std::move(moved);
      CHECK(token.use_count() == 2);
    }
    CHECK(calls[0] == 10 && calls[1] == 10 && outer.state(1)[2] == 10);
  }
  CHECK(token.use_count() == 1);
  // A function is compared by its name.
  dist::outer_options options = averaging_options();
  options.optimizer = g.rank() == 0 ? "mine" : "yours";
  options.function = [](const dist::outer_update &) {};
  const auto different = dist::outer::make(g, t.params(), options, dist::nothrow);
  CHECK(!different && different.error().code == dist::errc::mismatch && contains(different.error().message, "yours"));
}

/// A vote against an update: all ranks go back to the global values from before.
void rejected_update_restores_values(const dist::group &g) {
  trainer t;
  dist::outer outer(g, t.params(), averaging_options(2));
  const trainer before = t;
  t.run_sgd_step(g.rank());
  // No fragment is due: the vote does not count.
  dist::outer_step done = outer.step(dist::vote::non_finite);
  CHECK(!done.fragment && done.votes == dist::vote::commit && t != before);
  t.weights[0] = g.rank() == 0 ? NAN : t.weights[0];
  done = outer.step(g.rank() == 0 ? dist::vote::non_finite : dist::vote::commit);
  CHECK(done.fragment == std::optional<std::size_t>(0) && done.votes == dist::vote::non_finite && t == before);
  t.run_sgd_step(g.rank());
  outer.step();
  CHECK(outer.step().votes == dist::vote::commit && t != before && is_equal_on_all(g, t.weights));
  const dist::outer_stats stats = outer.stats();
  CHECK(stats.steps == 4 && stats.updates == 1 && stats.restores == 1);
}

/// Nesterov's momentum with own factors, in two fragments that take turns.
void fragments_take_turns(const dist::group &g) {
  trainer t;
  dist::outer_options options;
  options.every = 4;
  options.fragments = 2;
  options.learning_rate = 0.5;
  options.momentum = 0.25;
  options.name = "nesterov";
  dist::outer outer(g, t.params(), options);
  floats global = t.weights;
  floats velocity(global.size());
  for (int i = 0; i < 8; ++i) {
    t.run_sgd_step(g.rank());
    floats mean = t.weights;
    g.all_reduce(mean, dist::avg);
    const floats local = t.weights;
    const std::optional<std::size_t> due = outer.step().fragment;
    CHECK(due == (i % 4 == 1 ? std::optional<std::size_t>(0) : i % 4 == 3 ? std::optional<std::size_t>(1) : std::nullopt));
    CHECK((t.weights == local) == (due != std::optional<std::size_t>(0)));
    if (due == std::optional<std::size_t>(0)) {
      for (std::size_t k = 0; k < global.size(); ++k) {
        const float gradient = global[k] - mean[k];
        velocity[k] = 0.25F * velocity[k] + gradient;
        global[k] -= 0.5F * (gradient + 0.25F * velocity[k]);
      }
    }
    CHECK(are_near(copy_values(outer.global(0)), global) && are_near(copy_values(outer.state(0)), velocity));
  }
  CHECK(outer.stats().updates == 4 && is_equal_on_all(g, copy_values(outer.global(1))));
  // The defaults are other factors.
  trainer u, v;
  options.fragments = 1;
  dist::outer own(g, u.params(), options);
  options.learning_rate = 0.7;
  options.momentum = 0.9;
  dist::outer named(g, v.params(), options);
  trainer w;
  options.learning_rate = options.momentum = 0;
  options.optimizer = "nesterov";
  dist::outer usual(g, w.params(), options);
  for (int i = 0; i < 4; ++i) {
    for (trainer *each : {&u, &v, &w}) each->run_sgd_step(g.rank());
    for (dist::outer *each : {&own, &named, &usual}) each->step();
  }
  CHECK(v == w && u != v);
}

/// Hooks send fewer bytes, and their settings arrive.
void hooks_send_fewer_bytes(const dist::group &g) {
  for (const char *hook : {"", "all_reduce", "bf16"}) {
    trainer t, together;
    dist::outer_options options = averaging_options();
    options.hook = hook;
    dist::outer outer(g, t.params(), options);
    t.run_sgd_step(g.rank());
    outer.step();
    together.run_sgd_step(0, g.size());
    const bool is_bf16 = options.hook == "bf16";
    CHECK((outer.stats().bytes_saved > 0) == is_bf16 && is_equal_on_all(g, t.weights));
    CHECK(std::abs(t.weights[3] - together.weights[3]) < (is_bf16 ? 1e-2F : 1e-5F));
  }
  trainer t;
  dist::outer_options options = averaging_options();
  options.hook = "int8";
  options.hook_settings = "block=64";
  CHECK(dist::outer(g, t.params(), options).step().fragment.has_value());
  options.hook_settings = "blocks=64";
  const auto refused = dist::outer::make(g, t.params(), options, dist::nothrow);
  CHECK(!refused && contains(refused.error().message, "blocks"));
}

/// Values of another type, and a parameter that is not trained.
void value_types_may_differ(const dist::group &g) {
  std::vector<double> values(3, 1);
  double mean = g.rank();
  dist::outer outer(g, {dist::param("w", values), dist::param("mean", mean).with_role(dist::param_role::buffer)},
                    averaging_options());
  values[1] = g.rank();
  outer.step();
  CHECK(values == (std::vector<double>{1, 0.5, 1}) && outer.global(0)[1] == 0.5F && mean == g.rank());
  const auto untrained = outer.global(1, dist::nothrow);
  CHECK(!untrained && untrained.error().code == dist::errc::invalid_argument && !outer.state(1, dist::nothrow));
}

/// A training that goes on from a checkpoint gives the same bits.
void checkpoint_continues_the_training(const dist::group &g) {
  const int root = g.size() - 1;
  dist::outer_options options;
  options.every = 4;
  options.fragments = 2;
  trainer a, b;
  dist::outer outer(g, a.params(), options);
  for (int i = 0; i < 8; ++i) {
    a.run_sgd_step(g.rank());
    outer.step();
  }
  const dist::blob saved = outer.save();
  CHECK(saved.size() == 1 && !saved.view().empty());
  dist::outer restored(g, b.params(), options);
  CHECK(b != a);
  const auto nonsense = restored.load("nonsense", root, dist::nothrow);
  CHECK(!nonsense && nonsense.error().code == dist::errc::invalid_argument);
  restored.load(g.rank() == root ? saved.view() : "not used", root);
  CHECK(b.weights == copy_values(outer.global(0)) && b.biases == copy_values(outer.global(1)));
  CHECK(copy_values(restored.state(0)) == copy_values(outer.state(0)) && restored.save().str() == saved.str());
  b = a;
  for (int i = 0; i < 9; ++i) {
    a.run_sgd_step(g.rank());
    b.run_sgd_step(g.rank());
    CHECK(outer.step().fragment == restored.step().fragment && a == b);
  }
}

/// Rank 2 is lost. The others repeat the update with the same changes.
void survivors_repeat_the_update(const dist::group &g) {
  trainer t;
  dist::outer_options options = averaging_options(2);
  options.fragments = 2;
  dist::outer outer(g, t.params(), options);
  t.run_sgd_step(g.rank());
  CHECK(outer.step().fragment == std::optional<std::size_t>(0));
  const floats former = copy_values(outer.global(0));
  if (g.rank() == 2) return;
  t.run_sgd_step(g.rank());
  const trainer local = t;
  const auto outcome = outer.step(dist::vote::commit, dist::nothrow);
  CHECK(!outcome && outcome.error().fatal_to_group() && t == local);
  const auto unsaved = outer.save(dist::nothrow);
  CHECK(!unsaved && unsaved.error().code == dist::errc::invalid_argument);
  const dist::group rest = g.shrink();
  outer.regroup(rest);
  CHECK(outer.step().fragment == std::optional<std::size_t>(1));
  CHECK(copy_values(outer.global(0)) == former && t.weights == local.weights);
  floats mean = local.biases;
  rest.all_reduce(mean, dist::avg);
  CHECK(are_near(t.biases, mean) && is_equal_on_all(rest, t.biases) && copy_values(outer.global(1)) == t.biases);
  CHECK(outer.stats().steps == 2 && outer.stats().updates == 2 && !outer.save().empty());
}

/// Rank 2 joins: it gets the global values, the states and the number of steps.
void new_rank_gets_the_state(const dist::group &g) {
  trainer t;
  dist::outer_options options;
  options.every = 4;
  const std::optional<dist::group> pair = g.subgroup({0, 1});
  std::optional<dist::outer> outer;
  if (pair) {
    outer.emplace(*pair, t.params(), options);
    for (int i = 0; i < 5; ++i) {
      t.run_sgd_step(g.rank());
      outer->step();
    }
    CHECK(outer->regroup(g, dist::nothrow).has_value());
  } else {
    outer.emplace(g, t.params(), options);
    CHECK(t.weights == copy_values(outer->global(0)) && t != trainer());
  }
  CHECK(is_equal_on_all(g, copy_values(outer->global(0))) && is_equal_on_all(g, copy_values(outer->state(0))) &&
        outer->state(0)[1] != 0);
  for (int i = 0; i < 3; ++i) {
    t.run_sgd_step(g.rank());
    CHECK(outer->step().fragment.has_value() == (i == 2));
  }
  CHECK(is_equal_on_all(g, t.weights));
}

/// The time-out of the options is shorter than that of the group.
void timeout_of_the_options_applies(const dist::group &g) {
  trainer t;
  const dist::group pair = *g.subgroup({0, 1});
  dist::outer_options options = averaging_options();
  options.timeout = 1s;
  dist::outer outer(pair, t.params(), options);
  if (g.rank() == 0) {
    const auto outcome = outer.step(dist::vote::commit, dist::nothrow);
    CHECK(!outcome && outcome.error().code == dist::errc::timeout);
  }
  g.barrier();
}

void refusals_are_reported(const dist::group &g) {
  trainer t;
  const auto check_refused = [&](const dist::outer_options &options, const char *word) {
    const auto made = dist::outer::make(g, t.params(), options, dist::nothrow);
    return !made && made.error().code == dist::errc::invalid_argument && contains(made.error().message, word);
  };
  dist::outer_options options;
  CHECK(check_refused(options, "every"));
  options.every = 5;
  options.fragments = 3;
  CHECK(check_refused(options, "fragments"));
  options.fragments = 1;
  options.optimizer = "adam";
  CHECK(check_refused(options, "adam"));
  options.optimizer.clear();
  options.momentum = -1;
  CHECK(check_refused(options, "momentum"));
  options.momentum = 0;
  options.function = [](const dist::outer_update &) {};
  CHECK(check_refused(options, "name"));
  options.function = nullptr;
  options.hook = "none";
  CHECK(check_refused(options, "none"));
  options.hook.clear();
  const auto on_device = dist::outer::make(g, {dist::param("w", t.weights).with_device(0)}, options, dist::nothrow);
  CHECK(!on_device && on_device.error().code == dist::errc::unsupported);
  options.every = static_cast<std::uint64_t>(5 + g.rank());
  try {
    dist::outer(g, t.params(), options);
    CHECK(false);
  } catch (const dist::error &error) {
    CHECK(error.code() == dist::errc::mismatch && contains(error.what(), "every 6"));
  }
  options.every = 5;
  auto made = dist::outer::make(g, t.params(), options, dist::nothrow);
  CHECK(made && made->global(1, dist::nothrow) && made->state(1, dist::nothrow) && made->stats(dist::nothrow));
  CHECK(!made->global(2, dist::nothrow) && !made->state(2, dist::nothrow));
  CHECK(made->step(dist::vote::commit, dist::nothrow) && made->save(dist::nothrow));
  CHECK(!made->load("", -1, dist::nothrow) && !made->regroup(dist::group_ref(nullptr), dist::nothrow));
  const dist::outer moved = std::move(*made);
  CHECK(!made->step(dist::vote::commit, dist::nothrow) && !made->stats(dist::nothrow) && moved.stats().steps == 1);
}

}  // namespace

int main() {
  run_ranks(2, [](const dist::group &g) {
    average_equals_one_process(g);
    function_object_averages(g);
    rejected_update_restores_values(g);
    fragments_take_turns(g);
    hooks_send_fewer_bytes(g);
    value_types_may_differ(g);
    checkpoint_continues_the_training(g);
    timeout_of_the_options_applies(g);
    refusals_are_reported(g);
  });
  run_ranks(3, survivors_repeat_the_update, "lost_rank");
  run_ranks(3, new_rank_gets_the_state, "new_rank");
  return 0;
}
