// Shards of an optimizer's state: the weights of a sharded training are those of a training in one
// process.
#include "check.hpp"

#include <cmath>
#include <string>

namespace {

using floats = std::vector<float>;

constexpr std::size_t sizes[] = {5, 200, 33};
constexpr std::size_t n_params = 3;
const char *const param_names[] = {"a", "b", "c"};

float gradient(int rank, int step, std::size_t i, float weight) {
  return std::tanh(weight - std::cos(0.01F * static_cast<float>(i) + static_cast<float>(rank))) +
         0.1F * std::sin(static_cast<float>(step) + static_cast<float>(i));
}

void run_adam(float &weight, float &m, float &v, float g, int step) {
  m += 0.1F * (g - m);
  v += 0.01F * (g * g - v);
  const float time = static_cast<float>(step + 1);
  weight -= 0.02F * (m / (1 - std::pow(0.9F, time))) / (std::sqrt(v / (1 - std::pow(0.99F, time))) + 1e-6F);
}

/// A model, with the states of a training in one process.
struct model {
  std::vector<floats> weights, m, v;
  int steps = 0;

  model() {
    for (const std::size_t size : sizes) {
      m.emplace_back(size);
      floats values(size);
      for (std::size_t i = 0; i < size; ++i) values[i] = std::sin(0.7F * static_cast<float>(i));
      weights.push_back(values);
    }
    v = m;
  }

  std::vector<dist::param> params() {
    std::vector<dist::param> all;
    for (std::size_t p = 0; p < n_params; ++p) all.emplace_back(param_names[p], weights[p]);
    return all;
  }

  /// A step with the mean of the gradients of all ranks.
  void step(int ranks) {
    for (std::size_t p = 0; p < n_params; ++p) {
      for (std::size_t i = 0; i < sizes[p]; ++i) {
        double sum = 0;
        for (int rank = 0; rank < ranks; ++rank) sum += static_cast<double>(gradient(rank, steps, i, weights[p][i]));
        run_adam(weights[p][i], m[p][i], v[p][i], static_cast<float>(sum / ranks), steps);
      }
    }
    ++steps;
  }
};

bool is_close(const floats &x, const floats &y) {
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (!(std::fabs(x[i] - y[i]) <= 2e-5F)) return false;
  }
  return x.size() == y.size();
}

bool is_close(const model &x, const model &y) {
  for (std::size_t p = 0; p < n_params; ++p) {
    if (!is_close(x.weights[p], y.weights[p])) return false;
  }
  return true;
}

dist::reducer_options small_bucket_options() {
  dist::reducer_options options;
  options.bucket_bytes = 300;
  options.first_bucket_bytes = 100;
  return options;
}

dist::shard_options adam_state_options() {
  dist::shard_options options;
  options.states = {"m", "v"};
  options.timeout = 20s;
  return options;
}

void write_gradients(dist::reducer &r, const dist::group &g, const model &trained) {
  auto step = r.step();
  for (std::size_t p = n_params; p-- > 0;) {
    const auto values = r.grad<float>(p);
    for (std::size_t i = 0; i < values.size; ++i) values[i] = gradient(g.rank(), trained.steps, i, trained.weights[p][i]);
    step.ready(p);
  }
  CHECK(step.commit() == dist::vote::commit);
}

/// Updates this rank's elements. Returns their number.
std::size_t update_shard(const dist::shard &s, model &trained) {
  const auto m = s.state(0), v = s.state(1);
  std::size_t count = 0;
  for (const dist::shard_range &range : s.ranges()) {
    const auto values = range.data<float>(), gradients = range.grad<float>();
    CHECK(values.data == trained.weights[range.param].data() + range.begin && gradients.size == range.count);
    CHECK(range.offset == count && range.offset + range.count <= m.size);
    for (std::size_t i = 0; i < range.count; ++i) {
      run_adam(values[i], m[range.offset + i], v[range.offset + i], gradients[i], trained.steps);
    }
    count += range.count;
  }
  ++trained.steps;
  CHECK(count == m.size && count == v.size);
  return count;
}

void shards_train_as_one_process(const dist::group &g, const dist::reducer_options &options, int copies) {
  model trained, reference;
  dist::reducer r(g, trained.params(), options);
  dist::shard_options shard_options = adam_state_options();
  shard_options.copies = copies;
  dist::shard made(r, shard_options);
  CHECK(made.get() != nullptr && made.state(0).size > 0 && made.state(1)[0] == 0);
  dist::shard s = std::move(made);
  // A reducer that moves keeps its shard.
  dist::reducer moved = std::move(r);
  for (int i = 0; i < 8; ++i) {
    write_gradients(moved, g, trained);
    const std::size_t count = update_shard(s, trained);
    const std::size_t share = 238 / static_cast<std::size_t>(g.size());
    CHECK(count >= share * static_cast<std::size_t>(copies) && count <= (share + 1) * static_cast<std::size_t>(copies));
    s.gather();
    reference.step(g.size());
    CHECK(is_close(trained, reference) && moved.check().empty());
  }
  s = dist::shard(dist::shard(std::move(s)));
  CHECK(s.state(0).size > 0);
}

/// The parameters arrive while the forward pass waits for one after the other.
void parameters_gather_in_background(const dist::group &g) {
  model trained, reference;
  dist::reducer_options options = small_bucket_options();
  options.sharded = true;
  options.share_grads = true;
  dist::reducer r(g, trained.params(), options);
  dist::shard s(r, adam_state_options());
  for (int i = 0; i < 8; ++i) {
    write_gradients(r, g, trained);
    update_shard(s, trained);
    dist::work work = s.gather_async();
    reference.step(g.size());
    for (std::size_t p = 0; p < n_params; ++p) {
      s.wait(p);
      CHECK(is_close(trained.weights[p], reference.weights[p]));
    }
    work.wait();
  }
}

/// A checkpoint of two ranks.
std::string checkpoint;
std::vector<floats> checkpoint_weights;

void checkpoint_is_saved(const dist::group &g) {
  model trained;
  dist::reducer r(g, trained.params(), small_bucket_options());
  dist::shard s(r, adam_state_options());
  for (int i = 0; i < 4; ++i) {
    write_gradients(r, g, trained);
    update_shard(s, trained);
    s.gather();
  }
  const dist::blob bytes = s.save(1);
  CHECK(bytes.empty() == (g.rank() == 0) && bytes.size() <= 1);
  if (g.rank() == 1) {
    checkpoint = bytes.str();
    checkpoint_weights = trained.weights;
  }
}

void checkpoint_is_loaded(const dist::group &g) {
  model trained, reference;
  // What a training in one process has after the steps of two ranks.
  for (int i = 0; i < 4; ++i) reference.step(2);
  dist::reducer r(g, trained.params(), small_bucket_options());
  dist::shard s(r, adam_state_options());
  trained.weights = checkpoint_weights;
  trained.steps = reference.steps;
  const auto wrong = s.load("twenty bytes of text", 0, dist::nothrow);
  CHECK(!wrong && wrong.error().code == dist::errc::invalid_argument);
  // Only the root has the bytes.
  s.load(g.rank() == 2 ? dist::byte_view(checkpoint) : dist::byte_view(""), 2);
  for (int i = 0; i < 4; ++i) {
    write_gradients(r, g, trained);
    update_shard(s, trained);
    s.gather();
    reference.step(g.size());
    CHECK(is_close(trained, reference));
  }
}

/// Rank 2 leaves. The others have two copies of each state, and lose none.
void lost_rank_loses_no_state(const dist::group &g) {
  model trained, reference;
  dist::reducer_options options = small_bucket_options();
  options.retryable = true;
  dist::reducer r(g, trained.params(), options);
  dist::shard_options shard_options = adam_state_options();
  shard_options.copies = 2;
  dist::shard s(r, shard_options);
  write_gradients(r, g, trained);
  update_shard(s, trained);
  s.gather();
  reference.step(3);
  if (g.rank() == 2) return;
  const dist::group rest = g.shrink();
  r.regroup(rest);
  s.gather();
  for (int i = 0; i < 3; ++i) {
    write_gradients(r, rest, trained);
    update_shard(s, trained);
    s.gather();
    reference.step(2);
    CHECK(is_close(trained, reference));
  }
}

/// Values and gradients of different types.
void gradient_type_may_differ(const dist::group &g) {
  std::vector<double> values(10, 1);
  dist::reducer r(g, {dist::param("w", values).with_grad_type<float>()});
  dist::shard s(r, {{"m", "v"}});
  CHECK(s.state(1).size == 5);
  auto step = r.step();
  for (float &each : r.grad<float>(0)) each = 4;
  step.ready(0);
  step.commit();
  CHECK(s.ranges().size() == 1);
  const dist::shard_range range = s.ranges()[0];
  CHECK(range.param == 0 && range.count == 5 && range.begin == 5 * static_cast<std::size_t>(g.rank()) && range.bucket == 0);
  CHECK(range.data<double>()[4] == 1 && range.grad<float>()[0] == 4);
  const auto wrong_values = range.data<float>(dist::nothrow);
  CHECK(!wrong_values && contains(wrong_values.error().message, "f64"));
  const auto wrong_gradients = range.grad<double>(dist::nothrow);
  CHECK(!wrong_gradients && wrong_gradients.error().code == dist::errc::invalid_argument);
}

void refusals_are_reported(const dist::group &g) {
  model m;
  dist::reducer r(g, m.params());
  dist::shard_options options;
  options.states = {"m", "m"};
  const auto twice = dist::shard::make(r, options, dist::nothrow);
  CHECK(!twice && contains(twice.error().message, "name"));
  options.states = {g.rank() == 0 ? "m" : "v"};
  const auto different = dist::shard::make(r, options, dist::nothrow);
  CHECK(!different && different.error().code == dist::errc::mismatch);
  auto s = dist::shard::make(r, adam_state_options(), dist::nothrow);
  CHECK(s && !dist::shard::make(r, {}, dist::nothrow));
  CHECK(!s->state(2, dist::nothrow) && !s->wait(n_params, dist::nothrow) && s->wait(0, dist::nothrow));
  CHECK(s->ranges(dist::nothrow) && s->gather(dist::nothrow) && s->gather_async(dist::nothrow)->wait(dist::nothrow));
  CHECK(!s->save(g.size(), dist::nothrow) && s->save(0, dist::nothrow));
}

}  // namespace

int main() {
  run_ranks(2, [](const dist::group &g) {
    dist::reducer_options options = small_bucket_options();
    shards_train_as_one_process(g, options, 1);
    shards_train_as_one_process(g, options, 2);
    options.sharded = true;
    shards_train_as_one_process(g, options, 1);
    parameters_gather_in_background(g);
    checkpoint_is_saved(g);
    gradient_type_may_differ(g);
    refusals_are_reported(g);
  });
  run_ranks(3, checkpoint_is_loaded, "loads");
  run_ranks(3, lost_rank_loses_no_state, "lost_rank");
  return 0;
}
