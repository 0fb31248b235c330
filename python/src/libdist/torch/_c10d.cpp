// The back end as a C++ subclass of torch's class: its state, its end, and other groups.
//
// Python creates the group and passes its handle (`_cxx.py`). Rare calls, such as splits, go back
// to the Python object that owns the group. The file is compiled against the installed torch,
// because the layout of torch's classes changes with each of its versions.
#include <pybind11/chrono.h>
#include <pybind11/stl.h>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/utils/pybind.h>

#include "_c10d_collectives.hpp"

namespace {

// Allocates memory that the other ranks of the host read without a copy.
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

class DistBackend final : public Collectives {
 public:
  DistBackend(dist_group_t* handle, py::object owner, Settings settings)
      : Collectives(c10::make_intrusive<Group>(handle, std::move(owner)), std::move(settings)) {}

  py::object owner() const { return group_->owner; }

  void monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) override {
    py::gil_scoped_acquire gil;
    owner().attr("monitored_barrier")(opts.timeout, wait_all_ranks);
  }

  // -- State

  const std::string getBackendName() const override { return settings_.name; }
  c10::intrusive_ptr<Options> getBackendOptions() override {
    py::gil_scoped_acquire gil;
    return owner().attr("options").cast<c10::intrusive_ptr<Options>>();
  }
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
        dist_group_set_timeout(handle(), std::max<int64_t>(1, timeout.count()));
    check(status, "set_timeout");
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
};

c10::intrusive_ptr<c10d::Backend> create(
    uintptr_t handle, py::object owner, std::string name, bool canonical,
    bool interruptible) {
  return c10::make_intrusive<DistBackend>(
      reinterpret_cast<dist_group_t*>(handle), std::move(owner),
      Settings{std::move(name), canonical, interruptible});
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
