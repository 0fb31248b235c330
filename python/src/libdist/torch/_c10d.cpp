// The back end as a C++ subclass of torch's class: the operations, their works and their futures.
//
// Python creates the group and passes its handle (`_cxx.py`). Rare calls, such as splits, go back
// to the Python object that owns the group. The file is compiled against the installed torch,
// because the layout of torch's classes changes with each of its versions.
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <pybind11/chrono.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/extension.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "dist.h"

namespace {

namespace py = pybind11;
using at::Tensor;
using c10d::OpType;
using Tensors = std::vector<Tensor>;
using Milliseconds = std::chrono::milliseconds;

constexpr auto kUnset = Milliseconds(-1);
// A wait checks for signals of the process this often.
constexpr int64_t kSliceMs = 50;

// ---- Types and operators

dist_dtype_t known_dtype(at::ScalarType type) {
  switch (type) {
    case at::kChar: return DIST_I8;
    case at::kByte: return DIST_U8;
    case at::kShort: return DIST_I16;
    case at::kUInt16: return DIST_U16;
    case at::kInt: return DIST_I32;
    case at::kUInt32: return DIST_U32;
    case at::kLong: return DIST_I64;
    case at::kUInt64: return DIST_U64;
    case at::kHalf: return DIST_F16;
    case at::kBFloat16: return DIST_BF16;
    case at::kFloat: return DIST_F32;
    case at::kDouble: return DIST_F64;
    case at::kComplexFloat: return DIST_C64;
    case at::kComplexDouble: return DIST_C128;
    case at::kBool: return DIST_BOOL;
    case at::kFloat8_e4m3fn: return DIST_F8E4M3;
    case at::kFloat8_e5m2: return DIST_F8E5M2;
    default: return 0;
  }
}

struct Elements {
  dist_dtype_t type;
  // How many elements of the C type one element of torch is.
  size_t width;
  size_t of(const Tensor& t) const { return static_cast<size_t>(t.numel()) * width; }
};

// The elements of a tensor whose bytes are only moved.
Elements moved(const Tensor& t) {
  const dist_dtype_t type = known_dtype(t.scalar_type());
  return type ? Elements{type, 1} : Elements{DIST_U8, static_cast<size_t>(t.element_size())};
}

Elements reduced(const Tensor& t) {
  const dist_dtype_t type = known_dtype(t.scalar_type());
  TORCH_CHECK_TYPE(type, "Invalid scalar type: libdist does not reduce ", t.scalar_type());
  return Elements{type, 1};
}

struct Operator {
  dist_op_t number;
  double factor;
};

Operator operator_of(const c10d::ReduceOp& op) {
  switch (op.op_) {
    case c10d::ReduceOp::SUM: return {DIST_SUM, 0};
    case c10d::ReduceOp::AVG: return {DIST_AVG, 0};
    case c10d::ReduceOp::PRODUCT: return {DIST_PRODUCT, 0};
    case c10d::ReduceOp::MIN: return {DIST_MIN, 0};
    case c10d::ReduceOp::MAX: return {DIST_MAX, 0};
    case c10d::ReduceOp::BAND: return {DIST_BAND, 0};
    case c10d::ReduceOp::BOR: return {DIST_BOR, 0};
    case c10d::ReduceOp::BXOR: return {DIST_BXOR, 0};
    case c10d::ReduceOp::PREMUL_SUM: {
      const auto* data = static_cast<const c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
      const bool has_tensor = data->tensor_factor.defined();
      return {DIST_PREMUL_SUM,
              has_tensor ? data->tensor_factor.item<double>() : data->double_factor};
    }
    default: TORCH_CHECK_VALUE(false, "libdist does not have this operator");
  }
}

// ---- Memory

bool is_plain(const Tensor& t) { return t.is_contiguous() && !t.is_neg() && !t.is_conj(); }

void check_dense(const Tensor& t) {
  TORCH_CHECK_VALUE(
      t.layout() == at::kStrided, "libdist needs dense tensors, except for all_reduce");
}

Tensor readable(const Tensor& t) {
  check_dense(t);
  return is_plain(t) ? t : t.detach().resolve_conj().resolve_neg().contiguous();
}

// Copies that are due once an operation has succeeded: destination and source.
using Moves = std::vector<std::pair<Tensor, Tensor>>;

Tensor writable(const Tensor& t, Moves& moves) {
  check_dense(t);
  if (is_plain(t)) return t;
  Tensor buffer = at::empty(t.sizes(), t.options().memory_format(at::MemoryFormat::Contiguous));
  moves.emplace_back(t, buffer);
  return buffer;
}

Tensor in_place(const Tensor& t, Moves& moves) {
  if (is_plain(t)) return t;
  Tensor buffer = readable(t);
  moves.emplace_back(t, buffer);
  return buffer;
}

char* bytes_of(const Tensor& t) { return static_cast<char*>(t.data_ptr()); }

// Returns the tensor, or a copy if its memory overlaps another tensor in a place that is not
// allowed.
Tensor apart(const Tensor& t, const Tensors& others, const char* allowed = nullptr) {
  const char* begin = bytes_of(t);
  if (t.nbytes() == 0 || begin == allowed) return t;
  for (const Tensor& other : others) {
    const char* start = bytes_of(other);
    if (begin < start + other.nbytes() && start < begin + t.nbytes()) return t.clone();
  }
  return t;
}

const Tensor& only(const Tensors& tensors, const char* what) {
  TORCH_CHECK_VALUE(
      tensors.size() == 1, what, " takes one tensor for each rank, not ", tensors.size());
  return tensors[0];
}

void check_same_kind(const Tensor& first, const Tensors& tensors, const char* what) {
  for (const Tensor& t : tensors) {
    TORCH_CHECK_VALUE(
        t.scalar_type() == first.scalar_type() && t.device().type() == first.device().type(),
        what, ": the tensors have different types or devices");
  }
}

// The buffers of a call with one buffer for each rank.
struct Buffers {
  std::vector<void*> pointers;
  std::vector<size_t> counts;
  Buffers() = default;
  Buffers(const Tensors& tensors, Elements elements) {
    for (const Tensor& t : tensors) {
      pointers.push_back(t.data_ptr());
      counts.push_back(elements.of(t));
    }
  }
  const void* const* inputs() const { return const_cast<const void* const*>(pointers.data()); }
};

Buffers split_rows(const Tensor& t, std::vector<int64_t> sizes, int ranks, Elements elements) {
  const int64_t rows = t.dim() ? t.size(0) : 1;
  if (sizes.empty()) {
    TORCH_CHECK_VALUE(
        rows % ranks == 0, "Tensor's dim 0 does not divide equally across group size");
    sizes.assign(ranks, rows / ranks);
  }
  int64_t sum = 0;
  for (int64_t size : sizes) sum += size;
  TORCH_CHECK_VALUE(
      static_cast<int>(sizes.size()) == ranks && sum == rows,
      "Split sizes don't match total dim 0 size");
  const int64_t row = rows ? t.numel() / rows : 0;
  Buffers result;
  char* address = bytes_of(t);
  for (int64_t size : sizes) {
    result.pointers.push_back(address);
    result.counts.push_back(static_cast<size_t>(size * row) * elements.width);
    address += size * row * t.element_size();
  }
  return result;
}

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
// Issues one operation of the library.
using Call = std::function<dist_status_t(const dist_call_options_t*, dist_work_t**)>;

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
  friend class DistBackend;

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

// ---- The back end

class DistAllocator final : public c10::Allocator {
 public:
  explicit DistAllocator(GroupPtr group) : group_(std::move(group)) {}

  c10::DataPtr allocate(size_t bytes) override {
    void* memory = nullptr;
    if (bytes) {
      const dist_status_t status =
          dist_mem_alloc(group_->handle, bytes, DIST_DEVICE_HOST, &memory);
      if (status != DIST_OK) std::rethrow_exception(group_->error(status, "mem_alloc", nullptr));
    }
    return {memory, memory, &release, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  static void release(void* memory) { dist_mem_free(memory); }
  GroupPtr group_;
};

class DistBackend : public c10d::Backend {
 public:
  struct Settings {
    std::string name;
    bool canonical;
    // Whether a signal interrupts a synchronous call. Such calls take some microseconds longer.
    bool interruptible;
  };

  DistBackend(dist_group_t* handle, py::object owner, Settings settings)
      : Backend(dist_get_rank(handle), dist_get_world_size(handle)),
        group_(c10::make_intrusive<Group>(handle, std::move(owner))),
        settings_(std::move(settings)) {}

  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  py::object owner() const { return group_->owner; }

  // -- Reductions

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override {
    const Tensor& t = only(tensors, "all_reduce");
    if (t.layout() != at::kStrided) return allreduce_sparse(tensors, opts);
    Moves moves;
    Tensor buffer = in_place(t, moves);
    const Elements e = reduced(t);
    const Operator op = operator_of(opts.reduceOp);
    void* data = buffer.data_ptr();
    const size_t count = e.of(buffer);
    return issue(
        {"all_reduce", OpType::ALLREDUCE, tensors, tensors, kept(buffer), finisher(moves)},
        [g = group_, data, count, e, op](auto* o, auto** w) {
          return dist_all_reduce(g->handle, data, data, count, e.type, op.number, o, w);
        },
        opts, op.factor);
  }

  WorkPtr allreduce_coalesced(
      Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) override {
    return together("all_reduce", OpType::ALLREDUCE_COALESCED, opts, tensors, tensors, [&] {
      for (Tensor& t : tensors) {
        Tensors one{t};
        allreduce(one, opts);
      }
    });
  }

  WorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& opts) override {
    const Tensor& t = only(tensors, "all_reduce");
    TORCH_CHECK_VALUE(
        t.layout() == at::kSparse && opts.reduceOp.op_ == c10d::ReduceOp::SUM,
        "libdist reduces sparse tensors only in COO layout, and only by SUM");
    struct Exchange {
      Tensor payload;
      dist_blob_t* blob = nullptr;
      ~Exchange() { dist_blob_release(blob); }
    };
    const Tensor own = t.coalesce();
    auto exchange = std::make_shared<Exchange>();
    exchange->payload = at::cat({raw_bytes(own.indices()), raw_bytes(own.values())});
    auto finish = [exchange, own, t] { Tensor(t).copy_(sparse_sum(exchange->blob, own)); };
    return issue(
        {"sparse_all_reduce", OpType::_ALLREDUCE_SPARSE, tensors, tensors, exchange, finish},
        [g = group_, exchange](auto* o, auto** w) {
          const Tensor& p = exchange->payload;
          return dist_all_gather_bytes(
              g->handle, p.data_ptr(), p.numel(), &exchange->blob, o, w);
        },
        opts);
  }

  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& opts) override {
    const Tensor& t = only(tensors, "reduce");
    const auto root = static_cast<int32_t>(opts.rootRank);
    Moves moves;
    Tensor buffer = root == rank_ ? in_place(t, moves) : readable(t);
    const Elements e = reduced(t);
    const Operator op = operator_of(opts.reduceOp);
    return issue(
        {"reduce", OpType::REDUCE, tensors, tensors, kept(buffer), finisher(moves)},
        [=, g = group_, data = buffer.data_ptr(), count = e.of(t)](auto* o, auto** w) {
          void* result = root == dist_get_rank(g->handle) ? data : nullptr;
          return dist_reduce(g->handle, data, result, count, e.type, op.number, root, o, w);
        },
        opts, op.factor);
  }

  WorkPtr reduce_scatter(
      Tensors& outputs, std::vector<Tensors>& inputs,
      const c10d::ReduceScatterOptions& opts) override {
    const Tensor& output = only(outputs, "reduce_scatter");
    const Tensors& parts = list_of(inputs, "reduce_scatter");
    check_same_kind(output, parts, "reduce_scatter");
    TORCH_CHECK_VALUE(
        parts[rank_].numel() == output.numel(),
        "reduce_scatter: the output has another size than the rank's input");
    Moves moves;
    Tensor target = writable(output, moves);
    Tensors sources = all_apart(parts, {target}, bytes_of(parts[rank_]));
    const Elements e = reduced(output);
    const Operator op = operator_of(opts.reduceOp);
    Buffers in(sources, e);
    return issue(
        {"reduce_scatter", OpType::REDUCE_SCATTER, parts, outputs, kept(sources, target),
         finisher(moves)},
        [=, g = group_, data = target.data_ptr()](auto* o, auto** w) {
          return dist_reduce_scatter_v(
              g->handle, in.inputs(), in.counts.data(), data, e.type, op.number, o, w);
        },
        opts, op.factor);
  }

  WorkPtr _reduce_scatter_base(
      Tensor& output, Tensor& input, const c10d::ReduceScatterOptions& opts) override {
    TORCH_CHECK_VALUE(
        output.numel() * size_ == input.numel(),
        "input tensor must be the same size as output size times world size");
    check_same_kind(
        output, {input}, "input tensor must be the same type as the output tensor");
    Moves moves;
    Tensor target = writable(output, moves);
    Tensor data = readable(input);
    const char* block = bytes_of(data) + rank_ * output.nbytes();
    if (bytes_of(target) != block) data = apart(data, {target});
    const Elements e = reduced(output);
    const Operator op = operator_of(opts.reduceOp);
    return issue(
        {"_reduce_scatter_base", OpType::_REDUCE_SCATTER_BASE, {input}, {output},
         kept(data, target), finisher(moves)},
        [=, g = group_, from = data.data_ptr(), to = target.data_ptr(),
         count = e.of(target)](auto* o, auto** w) {
          return dist_reduce_scatter(g->handle, from, to, count, e.type, op.number, o, w);
        },
        opts, op.factor);
  }

  WorkPtr reduce_scatter_tensor_coalesced(
      Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& opts) override {
    TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "the lists have different lengths");
    return together(
        "reduce_scatter_tensor_coalesced", OpType::REDUCE_SCATTER_TENSOR_COALESCED, opts, inputs,
        outputs, [&] {
          for (size_t i = 0; i < inputs.size(); ++i) {
            _reduce_scatter_base(outputs[i], inputs[i], opts);
          }
        });
  }

  // -- Movements

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) override {
    const Tensor& t = only(tensors, "broadcast");
    Moves moves;
    Tensor buffer = in_place(t, moves);
    const Elements e = moved(t);
    return issue(
        {"broadcast", OpType::BROADCAST, tensors, tensors, kept(buffer), finisher(moves)},
        [=, g = group_, data = buffer.data_ptr(), count = e.of(t),
         root = static_cast<int32_t>(opts.rootRank)](auto* o, auto** w) {
          return dist_broadcast(g->handle, data, count, e.type, root, o, w);
        },
        opts);
  }

  WorkPtr allgather(
      std::vector<Tensors>& outputs, Tensors& inputs,
      const c10d::AllgatherOptions& opts) override {
    const Tensor& input = only(inputs, "all_gather");
    const Tensors& targets = list_of(outputs, "all_gather");
    check_same_kind(input, targets, "all_gather");
    TORCH_CHECK_VALUE(
        targets[rank_].numel() == input.numel(),
        "all_gather: invalid tensor size of the rank's own output");
    Moves moves;
    Tensors places = all_writable(targets, moves);
    Tensor data = apart(readable(input), places, bytes_of(places[rank_]));
    const Elements e = moved(input);
    Buffers out(places, e);
    return issue(
        {"all_gather", OpType::ALLGATHER, inputs, targets, kept(places, data), finisher(moves)},
        [=, g = group_, from = data.data_ptr()](auto* o, auto** w) {
          return dist_all_gather_v(
              g->handle, from, out.pointers.data(), out.counts.data(), e.type, o, w);
        },
        opts);
  }

  WorkPtr _allgather_base(
      Tensor& output, Tensor& input, const c10d::AllgatherOptions& opts) override {
    TORCH_CHECK_VALUE(
        output.numel() == input.numel() * size_,
        "output tensor size must be equal to world_size times input tensor size");
    TORCH_CHECK_VALUE(
        output.scalar_type() == input.scalar_type(),
        "output tensor must have the same type as input tensor");
    Moves moves;
    Tensor target = writable(output, moves);
    const char* block = bytes_of(target) + rank_ * input.nbytes();
    Tensor data = apart(readable(input), {target}, block);
    const Elements e = moved(input);
    return issue(
        {"_all_gather_base", OpType::_ALLGATHER_BASE, {input}, {output}, kept(data, target),
         finisher(moves)},
        [=, g = group_, from = data.data_ptr(), to = target.data_ptr(),
         count = e.of(input)](auto* o, auto** w) {
          return dist_all_gather(g->handle, from, to, count, e.type, o, w);
        },
        opts);
  }

  WorkPtr allgather_coalesced(
      std::vector<Tensors>& outputs, Tensors& inputs,
      const c10d::AllgatherOptions& opts) override {
    Tensors all;
    for (const Tensors& part : outputs) {
      TORCH_CHECK_VALUE(
          part.size() == inputs.size(), "invalid output size: it must be equal to the input size");
      all.insert(all.end(), part.begin(), part.end());
    }
    return together("all_gather", OpType::ALLGATHER_COALESCED, opts, inputs, all, [&] {
      for (size_t i = 0; i < inputs.size(); ++i) {
        std::vector<Tensors> lists(1);
        for (Tensors& part : outputs) lists[0].push_back(part[i]);
        Tensors one{inputs[i]};
        allgather(lists, one, opts);
      }
    });
  }

  WorkPtr allgather_into_tensor_coalesced(
      Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) override {
    TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "the lists have different lengths");
    return together(
        "all_gather_into_tensor_coalesced", OpType::ALLGATHER_INTO_TENSOR_COALESCED, opts, inputs,
        outputs, [&] {
          for (size_t i = 0; i < inputs.size(); ++i) _allgather_base(outputs[i], inputs[i], opts);
        });
  }

  WorkPtr gather(
      std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& opts) override {
    const Tensor& input = only(inputs, "gather");
    const auto root = static_cast<int32_t>(opts.rootRank);
    const Elements e = moved(input);
    Moves moves;
    Tensors targets, places;
    if (rank_ == root) {
      targets = list_of(outputs, "gather");
      check_same_kind(input, targets, "gather");
      places = all_writable(targets, moves);
    } else {
      TORCH_CHECK_VALUE(
          outputs.empty(), "gather: outputs must be empty on ranks that are not the root");
    }
    Tensor data =
        apart(readable(input), places, places.empty() ? nullptr : bytes_of(places[root]));
    Buffers out(places, e);
    return issue(
        {"gather", OpType::GATHER, inputs, targets, kept(places, data), finisher(moves)},
        [=, g = group_, from = data.data_ptr(), count = e.of(input)](auto* o, auto** w) {
          void* const* to = out.pointers.empty() ? nullptr : out.pointers.data();
          return dist_gather_v(
              g->handle, from, count, to, out.counts.data(), e.type, root, o, w);
        },
        opts);
  }

  WorkPtr scatter(
      Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& opts) override {
    const Tensor& output = only(outputs, "scatter");
    const auto root = static_cast<int32_t>(opts.rootRank);
    const Elements e = moved(output);
    Moves moves;
    Tensor target = writable(output, moves);
    Tensors parts, sources;
    if (rank_ == root) {
      parts = list_of(inputs, "scatter");
      check_same_kind(output, parts, "scatter");
      sources = all_apart(parts, {target}, bytes_of(parts[root]));
    } else {
      TORCH_CHECK_VALUE(
          inputs.empty(), "scatter: inputs must be empty on ranks that are not the root");
    }
    Buffers in(sources, e);
    return issue(
        {"scatter", OpType::SCATTER, parts.empty() ? outputs : parts, outputs,
         kept(sources, target), finisher(moves)},
        [=, g = group_, to = target.data_ptr(), count = e.of(output)](auto* o, auto** w) {
          const void* const* from = in.pointers.empty() ? nullptr : in.inputs();
          return dist_scatter_v(g->handle, from, in.counts.data(), to, count, e.type, root, o, w);
        },
        opts);
  }

  WorkPtr alltoall(
      Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) override {
    check_list(outputs, "all_to_all");
    check_list(inputs, "all_to_all");
    check_same_kind(outputs[0], outputs, "all_to_all");
    check_same_kind(outputs[0], inputs, "all_to_all");
    Moves moves;
    Tensors places = all_writable(outputs, moves);
    Tensors sources = all_apart(inputs, places, nullptr);
    const Elements e = moved(inputs[0]);
    Buffers in(sources, e), out(places, e);
    return issue(
        {"all_to_all", OpType::ALLTOALL, inputs, outputs, kept(sources, places),
         finisher(moves)},
        [=, g = group_](auto* o, auto** w) {
          return dist_all_to_all_v(
              g->handle, in.inputs(), in.counts.data(), out.pointers.data(), out.counts.data(),
              e.type, o, w);
        },
        opts);
  }

  WorkPtr alltoall_base(
      Tensor& output, Tensor& input, std::vector<int64_t>& output_sizes,
      std::vector<int64_t>& input_sizes, const c10d::AllToAllOptions& opts) override {
    check_same_kind(output, {input}, "all_to_all_single");
    Moves moves;
    Tensor target = writable(output, moves);
    Tensor data = apart(readable(input), {target});
    const Elements e = moved(input);
    DistWork::Plan plan{"all_to_all", OpType::ALLTOALL_BASE, {input}, {output},
                        kept(data, target), finisher(moves)};
    if (output_sizes.empty() && input_sizes.empty()) {
      TORCH_CHECK_VALUE(
          input.numel() % size_ == 0 && input.numel() == output.numel(),
          "Tensor's dim 0 does not divide equally across group size");
      return issue(
          std::move(plan),
          [=, g = group_, from = data.data_ptr(), to = target.data_ptr(),
           count = e.of(input) / size_](auto* o, auto** w) {
            return dist_all_to_all(g->handle, from, to, count, e.type, o, w);
          },
          opts);
    }
    Buffers in = split_rows(data, input_sizes, size_, e);
    Buffers out = split_rows(target, output_sizes, size_, e);
    return issue(
        std::move(plan),
        [=, g = group_](auto* o, auto** w) {
          return dist_all_to_all_v(
              g->handle, in.inputs(), in.counts.data(), out.pointers.data(), out.counts.data(),
              e.type, o, w);
        },
        opts);
  }

  WorkPtr barrier(const c10d::BarrierOptions& opts) override {
    return issue(
        {"barrier", OpType::BARRIER, {}, {}, nullptr, nullptr},
        [g = group_](auto* o, auto** w) { return dist_barrier(g->handle, o, w); }, opts);
  }

  void monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) override {
    py::gil_scoped_acquire gil;
    owner().attr("monitored_barrier")(opts.timeout, wait_all_ranks);
  }

  // -- Messages

  WorkPtr send(Tensors& tensors, int peer, int tag) override {
    const Tensor& t = only(tensors, "send");
    Tensor data = readable(t);
    const Elements e = moved(t);
    return issue(
        {"send", OpType::SEND, tensors, tensors, kept(data), nullptr},
        [=, g = group_, from = data.data_ptr(), count = e.of(t)](auto* o, auto** w) {
          return dist_send(g->handle, from, count, e.type, peer, tag, o, w);
        },
        MessageOptions{});
  }

  WorkPtr recv(Tensors& tensors, int peer, int tag) override {
    return receive("recv", OpType::RECV, tensors, peer, tag);
  }

  WorkPtr recvAnysource(Tensors& tensors, int tag) override {
    return receive("recvAnySource", OpType::RECVANYSOURCE, tensors, DIST_ANY_SOURCE, tag);
  }

  // -- Several operations as one

  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override { collected_.emplace(); }
  WorkPtr endCoalescing() override {
    auto collected = std::move(collected_).value_or(Collected{});
    collected_.reset();
    Tensors tensors;
    for (const auto& entry : collected) {
      tensors.insert(tensors.end(), entry.plan.outputs.begin(), entry.plan.outputs.end());
    }
    return batch(
        {"coalesced", OpType::COALESCED, tensors, tensors, nullptr, nullptr},
        std::move(collected), true);
  }

  // -- State

  const std::string getBackendName() const override { return settings_.name; }
  c10::intrusive_ptr<Options> getBackendOptions() override {
    py::gil_scoped_acquire gil;
    return owner().attr("options").cast<c10::intrusive_ptr<Options>>();
  }
  uint64_t getSequenceNumberForGroup() override { return sequence_; }
  void setSequenceNumberForGroup() override {}
  std::shared_ptr<c10::Allocator> getMemAllocator() override {
    return std::make_shared<DistAllocator>(group_);
  }
  bool supportsTensorAlloc(c10::DeviceIndex) override { return true; }
  Tensor allocateTensor(long size, at::TensorOptions options) override {
    // torch keeps no reference to the allocator of a storage.
    auto allocator = std::make_shared<DistAllocator>(group_);
    const size_t bytes = static_cast<size_t>(size) * options.dtype().itemsize();
    void* memory = allocator->allocate(bytes).release_context();
    return at::from_blob(
        memory, {size}, [](void* address) { dist_mem_free(address); },
        options.device(c10::DeviceType::CPU));
  }
  void setTimeout(Milliseconds timeout) override {
    const dist_status_t status =
        dist_group_set_timeout(group_->handle, std::max<int64_t>(1, timeout.count()));
    if (status != DIST_OK) std::rethrow_exception(group_->error(status, "set_timeout", nullptr));
  }
  void abort() override { call_owner("abort"); }
  void shutdown() override {
    call_owner("shutdown");
    drain(true);
  }
  void waitForPendingWorks() override {}
  void enableCollectivesTiming() override {}

#ifdef C10D_BACKEND_HAS_RECONFIGURE
  // -- Newer parts of torch

  c10d::ErrorType getError() override {
    py::gil_scoped_acquire gil;
    return owner().attr("get_error")().cast<c10d::ErrorType>();
  }
  bool supportsSplitting() const override { return true; }
  bool supportsShrinking() const override { return true; }
  bool supportsReconfigure() const override { return true; }
  bool supportsAbortHooks() const override { return true; }
  void registerAbortHook(int64_t id, c10d::AbortHook hook) override {
    py::gil_scoped_acquire gil;
    // torch's own hook writes a trace, for which other threads need the interpreter.
    py::cpp_function function(
        std::move(hook), py::call_guard<py::gil_scoped_release>());
    owner().attr("register_abort_hook")(id, function);
  }
  void unregisterAbortHook(int64_t id) override {
    py::gil_scoped_acquire gil;
    owner().attr("unregister_abort_hook")(id);
  }
  WorkPtr gather_single(
      Tensor& output, Tensor& input, const c10d::GatherOptions& opts) override {
    const auto root = static_cast<int32_t>(opts.rootRank);
    const Elements e = moved(input);
    Moves moves;
    Tensor target, data = readable(input);
    if (rank_ == root) {
      TORCH_CHECK_VALUE(
          output.numel() == input.numel() * size_ &&
              output.scalar_type() == input.scalar_type(),
          "gather_single: the output does not have the size or the type of all inputs");
      target = writable(output, moves);
      data = apart(data, {target}, bytes_of(target) + rank_ * input.nbytes());
    }
    return issue(
        {"gather", OpType::GATHER, {input}, rank_ == root ? Tensors{output} : Tensors{},
         kept(data, target), finisher(moves)},
        [=, g = group_, from = data.data_ptr(), count = e.of(input),
         to = rank_ == root ? target.data_ptr() : nullptr](auto* o, auto** w) {
          return dist_gather(g->handle, from, to, count, e.type, root, o, w);
        },
        opts);
  }
  c10::intrusive_ptr<Backend> split(
      const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
      const c10::intrusive_ptr<Options>& opts) override {
    return made("split", store, ranks, opts);
  }
  c10::intrusive_ptr<Backend> merge(
      const c10::intrusive_ptr<c10d::Store>& store, const c10::intrusive_ptr<Options>& opts,
      const int& rank, const int& size) override {
    return made("merge", store, opts, rank, size);
  }
  c10::intrusive_ptr<Backend> shrink(
      const std::vector<int64_t>& excluded, int flags,
      const c10::intrusive_ptr<Options>& opts) override {
    return made("shrink", excluded, flags, opts);
  }
  c10d::ReconfigureHandle get_reconfigure_handle() const override {
    py::gil_scoped_acquire gil;
    return owner().attr("get_reconfigure_handle")().cast<std::string>();
  }
  WorkPtr reconfigure(const c10d::ReconfigureOptions& opts) override {
    {
      py::gil_scoped_acquire gil;
      const auto address = owner().attr("reconfigure")(opts).cast<uintptr_t>();
      auto* handle = reinterpret_cast<dist_group_t*>(address);
      group_ = c10::make_intrusive<Group>(handle, owner());
      rank_ = dist_get_rank(handle);
      size_ = dist_get_world_size(handle);
    }
    return barrier(c10d::BarrierOptions());
  }
#endif

 private:
  struct MessageOptions {
    Milliseconds timeout = kUnset;
    bool asyncOp = true;
  };
  // One operation of a batch.
  struct Entry {
    DistWork::Plan plan;
    Call call;
    Milliseconds timeout;
    double factor;
  };
  using Collected = std::vector<Entry>;

  template <typename Opts>
  WorkPtr issue(DistWork::Plan plan, Call call, const Opts& opts, double factor = 0) {
    if (collected_) {
      collected_->push_back({std::move(plan), std::move(call), opts.timeout, factor});
      return nullptr;
    }
    drain(false);
    if (!c10d::isP2POp(plan.type)) ++sequence_;
    const bool async = opts.asyncOp;
    CallOptions options(opts.timeout, factor, settings_.canonical);
    if (!async && !settings_.interruptible && !at::hasCallbacks()) {
      check(call(options.pointer(), nullptr), plan.title);
      if (plan.finish) plan.finish();
      return nullptr;
    }
    auto work = new_work(std::move(plan));
    dist_work_t* handle = nullptr;
    check(call(options.pointer(), &handle), work->plan_.title);
    return started(std::move(work), handle, async);
  }

  WorkPtr started(c10::intrusive_ptr<DistWork> work, dist_work_t* handle, bool async) {
    work->begin(handle);
    if (async) {
      std::lock_guard<std::mutex> lock(outstanding_mutex_);
      outstanding_.push_back(work);
      return work;
    }
    try {
      work->wait(kNoTimeout);
    } catch (...) {
      // After a signal the operation still uses its tensors.
      if (!work->isCompleted()) {
        std::lock_guard<std::mutex> lock(outstanding_mutex_);
        outstanding_.push_back(work);
      }
      throw;
    }
    return nullptr;
  }

  template <typename Opts, typename Body>
  WorkPtr together(
      const char* title, OpType type, const Opts& opts, const Tensors& inputs,
      const Tensors& outputs, Body body) {
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
    return batch(
        {title, type, inputs, outputs, nullptr, nullptr}, std::move(collected), opts.asyncOp);
  }

  WorkPtr batch(DistWork::Plan plan, Collected collected, bool async) {
    drain(false);
    ++sequence_;
    auto shared = std::make_shared<Collected>(std::move(collected));
    plan.keep = shared;
    plan.finish = [shared] {
      for (Entry& entry : *shared) {
        if (entry.plan.finish) entry.plan.finish();
      }
    };
    auto work = new_work(std::move(plan));
    const char* title = work->plan_.title;
    check(dist_batch_begin(nullptr, 0), title);
    std::exception_ptr error;
    for (Entry& entry : *shared) {
      CallOptions options(entry.timeout, entry.factor, settings_.canonical);
      const dist_status_t status = entry.call(options.pointer(), nullptr);
      if (status != DIST_OK && !error) error = group_->error(status, title, nullptr);
    }
    dist_work_t* handle = nullptr;
    const dist_status_t status = dist_batch_end(&handle);
    if (status != DIST_OK) {
      std::rethrow_exception(error ? error : group_->error(status, title, nullptr));
    }
    auto result = started(std::move(work), handle, async && !error);
    if (error) std::rethrow_exception(error);
    return result;
  }

  WorkPtr receive(const char* title, OpType type, Tensors& tensors, int peer, int tag) {
    const Tensor& t = only(tensors, "recv");
    Moves moves;
    Tensor buffer = writable(t, moves);
    const Elements e = moved(t);
    return issue(
        {title, type, tensors, tensors, kept(buffer), finisher(moves)},
        [=, g = group_, to = buffer.data_ptr(), count = e.of(t)](auto* o, auto** w) {
          return dist_recv(g->handle, to, count, e.type, peer, tag, nullptr, o, w);
        },
        MessageOptions{});
  }

  // The options of a call; NULL if all are the default.
  class CallOptions {
   public:
    CallOptions(Milliseconds timeout, double factor, bool canonical) {
      is_default_ = timeout.count() <= 0 && factor == 0 && !canonical;
      if (timeout.count() > 0) options_.timeout_ms = timeout.count();
      options_.premul_scale = factor;
      if (canonical) options_.flags |= DIST_CALL_CANONICAL;
    }
    const dist_call_options_t* pointer() const { return is_default_ ? nullptr : &options_; }

   private:
    dist_call_options_t options_ = DIST_CALL_OPTIONS_INIT;
    bool is_default_;
  };

  c10::intrusive_ptr<DistWork> new_work(DistWork::Plan plan) {
    const char* profile = nullptr;
    std::string title;
    if (at::hasCallbacks()) {
      title = settings_.name + ":" + plan.title;
      profile = title.c_str();
    }
    return c10::make_intrusive<DistWork>(group_, std::move(plan), rank_, profile, sequence_);
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
      if (wait) dist_work_wait(front->handle_, kSliceMs);
      if (!front->isCompleted()) break;
      done.push_back(std::move(front));
      outstanding_.pop_front();
    }
  }

  template <typename... Arguments>
  c10::intrusive_ptr<Backend> made(const char* method, const Arguments&... arguments) {
    py::gil_scoped_acquire gil;
    py::object result = owner().attr(method)(arguments...);
    if (result.is_none()) return nullptr;
    return result.cast<c10::intrusive_ptr<Backend>>();
  }

  void call_owner(const char* method) {
    py::gil_scoped_acquire gil;
    owner().attr(method)();
  }

  template <typename... Kept>
  static std::shared_ptr<void> kept(Kept... objects) {
    return std::make_shared<std::tuple<Kept...>>(std::move(objects)...);
  }

  static std::function<void()> finisher(const Moves& moves) {
    if (moves.empty()) return nullptr;
    return [moves] {
      for (const auto& [to, from] : moves) Tensor(to).copy_(from);
    };
  }

  void check_list(const Tensors& tensors, const char* what) const {
    TORCH_CHECK_VALUE(
        static_cast<int>(tensors.size()) == size_, what, ": the list has ", tensors.size(),
        " tensors for ", size_, " ranks");
  }
  const Tensors& list_of(const std::vector<Tensors>& lists, const char* what) const {
    TORCH_CHECK_VALUE(lists.size() == 1, what, " takes one list, not ", lists.size());
    check_list(lists[0], what);
    return lists[0];
  }
  static Tensors all_writable(const Tensors& tensors, Moves& moves) {
    Tensors result;
    for (const Tensor& t : tensors) result.push_back(writable(t, moves));
    return result;
  }
  static Tensors all_apart(const Tensors& tensors, const Tensors& others, const char* allowed) {
    Tensors result;
    for (const Tensor& t : tensors) result.push_back(apart(readable(t), others, allowed));
    return result;
  }

  static Tensor raw_bytes(const Tensor& t) {
    return t.contiguous().view(at::kByte).reshape({-1});
  }

  // Adds the sparse tensors of all ranks. Each string has the indices and the values of one rank.
  static Tensor sparse_sum(const dist_blob_t* blob, const Tensor& own) {
    const int64_t dims = own.sparse_dim();
    std::vector<int64_t> shape = own.values().sizes().vec();
    int64_t entry = own.values().element_size();
    for (size_t i = 1; i < shape.size(); ++i) entry *= shape[i];
    entry += 8 * dims;
    Tensors indices, values;
    for (size_t rank = 0; rank < dist_blob_count(blob); ++rank) {
      const void* data = nullptr;
      size_t bytes = 0;
      TORCH_CHECK(dist_blob_data(blob, rank, &data, &bytes) == DIST_OK, dist_last_error());
      const int64_t count = static_cast<int64_t>(bytes) / entry;
      Tensor raw = at::from_blob(
          const_cast<void*>(data), {static_cast<int64_t>(bytes)}, at::TensorOptions(at::kByte));
      const int64_t cut = 8 * dims * count;
      indices.push_back(raw.slice(0, 0, cut).clone().view(at::kLong).reshape({dims, count}));
      shape[0] = count;
      values.push_back(raw.slice(0, cut).clone().view(own.scalar_type()).reshape(shape));
    }
    return at::sparse_coo_tensor(at::cat(indices, 1), at::cat(values), own.sizes()).coalesce();
  }

  GroupPtr group_;
  Settings settings_;
  uint64_t sequence_ = 0;
  // The operations of an open coalescing block.
  std::optional<Collected> collected_;
  std::mutex outstanding_mutex_;
  std::deque<c10::intrusive_ptr<DistWork>> outstanding_;
};

c10::intrusive_ptr<c10d::Backend> create(
    uintptr_t handle, py::object owner, std::string name, bool canonical,
    bool interruptible) {
  return c10::make_intrusive<DistBackend>(
      reinterpret_cast<dist_group_t*>(handle), std::move(owner),
      DistBackend::Settings{std::move(name), canonical, interruptible});
}

py::object owner_of(const c10::intrusive_ptr<c10d::Backend>& backend) {
  auto* own = dynamic_cast<DistBackend*>(backend.get());
  return own ? own->owner() : py::none();
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  module.doc() = "The back end of libdist as a C++ subclass.";
  module.def("create", &create, "Creates a back end over a group of the library.");
  module.def("owner_of", &owner_of, "Returns the owner of a back end, or None.");
  module.def(
      "close", [](int64_t limit_ms) { threads().close(Milliseconds(limit_ms)); },
      py::call_guard<py::gil_scoped_release>(), "Ends the threads that settle works.");
}
