// Works of the library with their futures and errors, and the threads that settle them.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/extension.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "_c10d_tensors.hpp"

namespace {

namespace py = pybind11;
using c10d::OpType;
using Milliseconds = std::chrono::milliseconds;

// A wait checks for signals of the process this often.
constexpr int64_t kSliceMs = 50;

// ---- Threads that settle works

// The library has one thread for completion callbacks, and callbacks of futures may wait for other
// works. Therefore each settled work gets a thread until its callbacks have returned.
class Threads {
 public:
  void submit(std::function<void()> job) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (closed_) return;
    jobs_.push_back(std::move(job));
    if (idle_ >= jobs_.size()) {
      changed_.notify_one();
      return;
    }
    ++living_;
    std::thread([this] { run(); }).detach();
  }

  // Ends the threads, at most until the limit has passed.
  void close(Milliseconds limit) {
    std::unique_lock<std::mutex> lock(mutex_);
    closed_ = true;
    changed_.notify_all();
    ended_.wait_for(lock, limit, [this] { return living_ == 0; });
  }

 private:
  void run() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      ++idle_;
      changed_.wait(lock, [this] { return !jobs_.empty() || closed_; });
      --idle_;
      if (jobs_.empty()) break;
      auto job = std::move(jobs_.front());
      jobs_.pop_front();
      lock.unlock();
      job();
      job = nullptr;
      lock.lock();
    }
    --living_;
    ended_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::condition_variable ended_;
  std::deque<std::function<void()>> jobs_;
  size_t idle_ = 0;
  size_t living_ = 0;
  bool closed_ = false;
};

// The object is never destroyed: detached threads may use it until the process ends.
Threads& threads() {
  static auto* instance = new Threads;
  return *instance;
}

// ---- Groups and errors

// The group that a back end uses, shared with its works.
struct Group : torch::CustomClassHolder {
  dist_group_t* handle;
  // The Python object that owns the handle. It makes exceptions and other groups.
  py::object owner;

  Group(dist_group_t* group, py::object object) : handle(group), owner(std::move(object)) {}
  ~Group() override {
    if (!Py_IsInitialized()) {
      owner.release();
      return;
    }
    py::gil_scoped_acquire gil;
    owner = py::object();
  }

  // Makes the exception of a failed call or work, as a C++ exception that torch gives to Python.
  std::exception_ptr error(dist_status_t status, const char* operation, dist_work_t* work) const {
    const std::string message = work ? work_message(work) : std::string(dist_last_error());
    py::gil_scoped_acquire gil;
    try {
      py::object made = owner.attr("error")(
          status, message, operation, reinterpret_cast<uintptr_t>(work));
      PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(made.ptr())), made.ptr());
      throw py::error_already_set();
    } catch (...) {
      return std::current_exception();
    }
  }

  static std::string work_message(dist_work_t* work) {
    std::string text(dist_work_error(work, nullptr, 0), '\0');
    if (text.empty()) return text;
    dist_work_error(work, text.data(), text.size());
    text.pop_back();
    return text;
  }
};

using GroupPtr = c10::intrusive_ptr<Group>;

// ---- Works

class DistWork : public c10d::Work {
 public:
  struct Plan {
    const char* title;
    OpType type;
    Tensors inputs;
    Tensors outputs;
    // What the operation uses until it is done.
    std::shared_ptr<void> keep;
    std::function<void()> finish;
  };

  DistWork(GroupPtr group, Plan plan, int rank, const char* profile, uint64_t sequence)
      : Work(rank, plan.type, profile, profile ? std::make_optional(plan.inputs) : std::nullopt),
        group_(std::move(group)),
        plan_(std::move(plan)),
        sequence_(sequence) {}

  ~DistWork() override { dist_work_release(handle_); }

  // Takes the handle of the issued operation.
  void begin(dist_work_t* handle) {
    handle_ = handle;
    is_recorded_ = static_cast<bool>(recordFunctionEndCallback_);
    if (is_recorded_) expect();
  }

  bool wait(Milliseconds timeout) override {
    const auto end = std::chrono::steady_clock::now() + timeout;
    while (!settled_.load(std::memory_order_acquire)) {
      int64_t slice = kSliceMs;
      if (timeout > kNoTimeout) {
        const auto left = std::chrono::duration_cast<Milliseconds>(
            end - std::chrono::steady_clock::now());
        TORCH_CHECK(
            left.count() > 0, "Timed out waiting ", timeout.count(), "ms for ", plan_.title,
            "; the operation continues");
        slice = std::min<int64_t>(kSliceMs, left.count());
      }
      const dist_status_t status = dist_work_wait(handle_, slice);
      if (status != DIST_IN_PROGRESS) {
        settle(status);
      } else {
        check_signals();
      }
    }
    if (is_recorded_) {
      std::unique_lock<std::mutex> lock(mutex_);
      cv_.wait_for(lock, std::chrono::seconds(10), [this] { return record_ended_; });
    }
    if (error_) std::rethrow_exception(error_);
    return true;
  }

  bool isCompleted() override {
    if (settled_.load(std::memory_order_acquire)) return true;
    int32_t done = 0;
    const dist_status_t status = dist_work_test(handle_, &done);
    if (done) settle(status);
    return done != 0;
  }

  bool isSuccess() const override {
    return settled_.load(std::memory_order_acquire) && !error_;
  }
  std::exception_ptr exception() const override { return error_; }
  std::vector<Tensor> result() override { return plan_.outputs; }
  void synchronize() override {}
  int sourceRank() const override { return source_; }
  uint64_t getSequencenumber() const override { return sequence_; }
  float getDuration() const override {
    return static_cast<float>(dist_work_elapsed_ns(handle_)) / 1e6F;
  }

  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    std::unique_lock<std::mutex> lock(future_mutex_);
    if (!future_) {
      future_ = c10::make_intrusive<c10::ivalue::Future>(
          c10::ListType::create(c10::TensorType::get()));
      lock.unlock();
      if (settled_.load(std::memory_order_acquire)) {
        resolve();
      } else {
        expect();
      }
    }
    return future_;
  }

  // Waits for a moment, and reports no error.
  void wait_briefly() { dist_work_wait(handle_, kSliceMs); }

  // Keeps the work alive, and settles it on one of the threads when it is done.
  void expect() {
    if (expected_.exchange(true)) return;
    c10::raw::intrusive_ptr::incref(this);
    const dist_status_t status = dist_work_on_complete(handle_, &DistWork::on_complete, this);
    if (status != DIST_OK) {
      c10::raw::intrusive_ptr::decref(this);
      std::rethrow_exception(group_->error(status, plan_.title, nullptr));
    }
  }

 private:
  static void on_complete(dist_status_t status, const char*, void* user) {
    auto work = c10::intrusive_ptr<DistWork>::reclaim(static_cast<DistWork*>(user));
    threads().submit([work = std::move(work), status] {
      work->settle(status);
      work->end_record();
      work->resolve();
    });
  }

  void settle(dist_status_t status) {
    std::lock_guard<std::mutex> lock(settle_mutex_);
    if (settled_.load(std::memory_order_relaxed)) return;
    if (status == DIST_OK) {
      try {
        at::NoGradGuard no_grad;
        if (plan_.finish) plan_.finish();
      } catch (...) {
        error_ = std::current_exception();
      }
      source_ = dist_work_source(handle_);
    } else {
      error_ = group_->error(status, plan_.title, handle_);
    }
    plan_.finish = nullptr;
    plan_.keep.reset();
    plan_.inputs.clear();
    settled_.store(true, std::memory_order_release);
  }

  // The record of the profiler ends on another thread than it began, as torch expects.
  void end_record() {
    std::function<void()> callback;
    std::swap(callback, recordFunctionEndCallback_);
    if (callback) callback();
    std::lock_guard<std::mutex> lock(mutex_);
    record_ended_ = true;
    cv_.notify_all();
  }

  void resolve() {
    c10::intrusive_ptr<c10::ivalue::Future> future;
    {
      std::lock_guard<std::mutex> lock(future_mutex_);
      if (!future_ || resolved_) return;
      resolved_ = true;
      future = future_;
    }
    if (error_) {
      future->setError(error_);
    } else {
      future->markCompleted(c10::IValue(plan_.outputs));
    }
  }

  static void check_signals() {
    py::gil_scoped_acquire gil;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
  }

  GroupPtr group_;
  Plan plan_;
  dist_work_t* handle_ = nullptr;
  std::atomic<bool> settled_{false};
  std::atomic<bool> expected_{false};
  std::exception_ptr error_;
  std::mutex settle_mutex_;
  std::mutex future_mutex_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  bool resolved_ = false;
  bool is_recorded_ = false;
  bool record_ended_ = false;
  int source_ = -1;
  uint64_t sequence_;
};

}  // namespace
