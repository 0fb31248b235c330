// The back end as a C++ subclass of torch's class: the operations.
//
// Python creates the group and passes its handle (`_cxx.py`). Rare calls, such as splits, go back
// to the Python object that owns the group. The file is compiled against the installed torch,
// because the layout of torch's classes changes with each of its versions.
#include <pybind11/chrono.h>
#include <pybind11/stl.h>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/utils/pybind.h>

#include "_c10d_work.hpp"

namespace {

constexpr auto kUnset = Milliseconds(-1);

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
