// How the back end issues operations: at once, as works, or as parts of a batch.
#pragma once

#include <optional>
#include <tuple>
#include <type_traits>

#include "_c10d_work.hpp"

namespace {

constexpr auto kUnset = Milliseconds(-1);

struct Settings {
  std::string name;
  bool canonical;
  // Whether a signal interrupts a synchronous call. Such calls take some microseconds longer.
  bool interruptible;
};

// The options of a call of the library; NULL if all are the default.
class CallOptions {
 public:
  CallOptions(Milliseconds timeout, double factor, bool canonical)
      : is_default_(timeout.count() <= 0 && factor == 0 && !canonical) {
    if (is_default_) return;
    options_ = dist_call_options_t DIST_CALL_OPTIONS_INIT;
    if (timeout.count() > 0) options_.timeout_ms = timeout.count();
    options_.premul_scale = factor;
    if (canonical) options_.flags |= DIST_CALL_CANONICAL;
  }
  const dist_call_options_t* pointer() const { return is_default_ ? nullptr : &options_; }

 private:
  // Without a value if all options are the default: a small call takes less than a microsecond.
  dist_call_options_t options_;
  bool is_default_;
};

// The part of the back end that issues operations.
class Issuer : public c10d::Backend {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override { collected_.emplace(); }
  WorkPtr endCoalescing() override {
    auto collected = std::move(collected_).value_or(Collected{});
    collected_.reset();
    Tensors tensors;
    for (const Entry& entry : collected) {
      tensors.insert(tensors.end(), entry.plan.outputs.begin(), entry.plan.outputs.end());
    }
    return batch({"coalesced", OpType::COALESCED, tensors, tensors}, std::move(collected), true);
  }

  uint64_t getSequenceNumberForGroup() override { return sequence_; }
  void setSequenceNumberForGroup() override {}

 protected:
  // What torch and its profiler learn of an operation. The lists must outlive the call of `issue`.
  struct Request {
    const char* title;
    OpType type;
    at::TensorList inputs;
    at::TensorList outputs;
    // The factor of PREMUL_SUM.
    double factor = 0;
  };

  Issuer(GroupPtr group, Settings settings)
      : Backend(dist_get_rank(group->handle), dist_get_world_size(group->handle)),
        group_(std::move(group)),
        settings_(std::move(settings)) {}

  dist_group_t* handle() const { return group_->handle; }

  // Issues one operation. `call` takes the options and the place for the work. `finish` runs once
  // the operation has succeeded. The operation uses the memory of `kept` until it is done.
  //
  // A synchronous call allocates nothing: the library does a small operation in a microsecond.
  template <typename Opts, typename Call, typename Finish, typename... Kept>
  WorkPtr issue(
      const Request& request, const Opts& opts, Call call, Finish finish, Kept... kept) {
    if (collected_) {
      collected_->push_back(
          {plan_of(request, std::move(finish), std::move(kept)...), std::move(call), opts.timeout,
           request.factor});
      return nullptr;
    }
    if (has_outstanding_.load(std::memory_order_relaxed)) drain(false);
    if (!c10d::isP2POp(request.type)) ++sequence_;
    const CallOptions options(opts.timeout, request.factor, settings_.canonical);
    if (!opts.asyncOp && !settings_.interruptible && !at::hasCallbacks()) {
      dist_work_t** const no_work = nullptr;
      check(call(options.pointer(), no_work), request.title);
      at::NoGradGuard no_grad;
      finish();
      return nullptr;
    }
    auto work = new_work(plan_of(request, std::move(finish), std::move(kept)...));
    dist_work_t* work_handle = nullptr;
    check(call(options.pointer(), &work_handle), request.title);
    return started(std::move(work), work_handle, opts.asyncOp);
  }

  // Issues the operations of `body` as one.
  template <typename Opts, typename Body>
  WorkPtr together(const Request& request, const Opts& opts, Body body) {
    auto outer = std::move(collected_);
    collected_.emplace();
    try {
      body();
    } catch (...) {
      collected_ = std::move(outer);
      throw;
    }
    Collected collected = std::move(*collected_);
    collected_ = std::move(outer);
    if (collected_) {
      for (Entry& entry : collected) collected_->push_back(std::move(entry));
      return nullptr;
    }
    return batch(request, std::move(collected), opts.asyncOp);
  }

  void check(dist_status_t status, const char* title) const {
    if (status != DIST_OK) std::rethrow_exception(group_->error(status, title, nullptr));
  }

  // Drops the works that are done. A pending work keeps the tensors that the library uses.
  void drain(bool wait) {
    std::deque<c10::intrusive_ptr<DistWork>> done;
    std::lock_guard<std::mutex> lock(outstanding_mutex_);
    while (!outstanding_.empty()) {
      auto& front = outstanding_.front();
      if (wait) front->wait_briefly();
      if (!front->isCompleted()) break;
      done.push_back(std::move(front));
      outstanding_.pop_front();
    }
    has_outstanding_.store(!outstanding_.empty(), std::memory_order_relaxed);
  }

  GroupPtr group_;
  Settings settings_;

 private:
  // One operation of a batch.
  struct Entry {
    DistWork::Plan plan;
    std::function<dist_status_t(const dist_call_options_t*, dist_work_t**)> call;
    Milliseconds timeout;
    double factor;
  };
  using Collected = std::vector<Entry>;

  template <typename Finish, typename... Kept>
  static DistWork::Plan plan_of(const Request& request, Finish finish, Kept... kept) {
    DistWork::Plan plan{request.title, request.type, request.inputs.vec(), request.outputs.vec()};
    if constexpr (sizeof...(Kept) > 0) {
      plan.keep = std::make_shared<std::tuple<Kept...>>(std::move(kept)...);
    }
    if constexpr (std::is_same_v<Finish, Moves>) {
      if (finish.empty()) return plan;
    }
    plan.finish = std::move(finish);
    return plan;
  }

  WorkPtr batch(const Request& request, Collected collected, bool async) {
    drain(false);
    ++sequence_;
    auto entries = std::make_shared<Collected>(std::move(collected));
    auto finish = [entries] {
      for (Entry& entry : *entries) {
        if (entry.plan.finish) entry.plan.finish();
      }
    };
    auto work = new_work(plan_of(request, std::move(finish), entries));
    check(dist_batch_begin(nullptr, 0), request.title);
    std::exception_ptr error;
    for (Entry& entry : *entries) {
      const CallOptions options(entry.timeout, entry.factor, settings_.canonical);
      const dist_status_t status = entry.call(options.pointer(), nullptr);
      if (status != DIST_OK && !error) error = group_->error(status, request.title, nullptr);
    }
    dist_work_t* work_handle = nullptr;
    const dist_status_t status = dist_batch_end(&work_handle);
    if (status != DIST_OK) {
      std::rethrow_exception(error ? error : group_->error(status, request.title, nullptr));
    }
    auto result = started(std::move(work), work_handle, async && !error);
    if (error) std::rethrow_exception(error);
    return result;
  }

  c10::intrusive_ptr<DistWork> new_work(DistWork::Plan plan) {
    const char* profile = nullptr;
    std::string title;
    if (at::hasCallbacks()) {
      title = settings_.name + ":" + plan.title;
      profile = title.c_str();
    }
    return c10::make_intrusive<DistWork>(group_, std::move(plan), rank_, profile, sequence_);
  }

  WorkPtr started(c10::intrusive_ptr<DistWork> work, dist_work_t* work_handle, bool async) {
    work->begin(work_handle);
    if (async) {
      keep_until_done(work);
      return work;
    }
    try {
      work->wait(kNoTimeout);
    } catch (...) {
      // After a signal the operation still uses its tensors.
      if (!work->isCompleted()) keep_until_done(work);
      throw;
    }
    return nullptr;
  }

  void keep_until_done(c10::intrusive_ptr<DistWork> work) {
    std::lock_guard<std::mutex> lock(outstanding_mutex_);
    outstanding_.push_back(std::move(work));
    has_outstanding_.store(true, std::memory_order_relaxed);
  }

  uint64_t sequence_ = 0;
  // The operations of an open coalescing block.
  std::optional<Collected> collected_;
  std::mutex outstanding_mutex_;
  std::deque<c10::intrusive_ptr<DistWork>> outstanding_;
  std::atomic<bool> has_outstanding_{false};
};

}  // namespace
