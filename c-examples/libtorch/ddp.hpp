// Data-parallel training of a torch::nn::Module in C++: the counterpart of PyTorch's
// DistributedDataParallel.
//
// The only dependencies are libtorch and dist.hpp. Copy the header into your project.
#ifndef LIBTORCH_DDP_HPP
#define LIBTORCH_DDP_HPP

#include <dist.hpp>

#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/torch.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

/// Averages the gradients of a module over the ranks of a group during the backward pass.
///
///     distributed_data_parallel ddp(world, *net);  // sends rank 0's parameters and buffers
///     for (auto &batch : *loader) {
///       optimizer.zero_grad();
///       auto step = ddp.step();
///       torch::nll_loss(net->forward(batch.data), batch.target).backward();
///       if (step.commit() == dist::vote::commit) optimizer.step();
///     }
///
/// grad() of each parameter is a view of memory of the reducer. Autograd adds to it, and the ranks
/// reduce it there without copies. If zero_grad() or autograd replaces the tensor, its values are
/// copied into the view, and grad() is the view again.
///
/// **Gradient accumulation.** Outside of a step, a backward pass communicates nothing, as in
/// no_sync() of PyTorch. Its gradients stay in grad(), and the next step reduces them together with
/// its own:
///
///     for (auto &part : parts) loss(part).backward();
///     auto step = ddp.step();
///     loss(last_part).backward();
///
/// A step has one backward pass. With dist::missing::zero or dist::missing::skip in the options, a
/// rank may leave parameters unused. Their gradients are zeros where PyTorch's are undefined,
/// unless another rank uses them.
///
/// The object borrows the module. Destroy it before the group; this makes grad() of all parameters
/// undefined. While it exists, do not call to() or torch::load on the module, which replace the
/// memory of parameters. One thread at a time uses it, but the backward pass may have several
/// threads.
class distributed_data_parallel {
 public:
  /// The scope of a step. If it is left without commit(), all ranks get dist::vote::error, and none
  /// waits for gradients.
  class [[nodiscard]] step_scope {
   public:
    step_scope(step_scope &&) = delete;
    ~step_scope() {
      if (step_) owner_.close_step();
    }

    /// Waits for the gradients, and returns the votes of all ranks. Unless these are
    /// dist::vote::commit, leave the update out. Throws the first error of the backward pass's
    /// hooks or of the reduction.
    [[nodiscard]] dist::vote commit(dist::vote own = dist::vote::commit) {
      if (!step_) throw std::logic_error("distributed_data_parallel: commit() was called twice in a step");
      // An exception from here on ends the step with dist::vote::error.
      dist::step last_step = *std::exchange(step_, std::nullopt);
      return owner_.end_step(std::move(last_step), own);
    }

   private:
    friend class distributed_data_parallel;
    step_scope(distributed_data_parallel &owner, dist::step step) : owner_(owner), step_(std::move(step)) {
      owner_.is_open_ = true;
    }

    distributed_data_parallel &owner_;
    std::optional<dist::step> step_;
  };

  /// Sends the parameters and buffers of rank 0 to all ranks. Parameters without requires_grad are
  /// frozen. All ranks have the same module and options. dist::reducer_options::retryable and
  /// sharded are not supported.
  distributed_data_parallel(dist::group_ref group, torch::nn::Module &module, const dist::reducer_options &options = {})
      : tensors_(list_tensors(module)), reducer_(group, list_params(tensors_), validated_options(options)) {
    attach_reducer_gradients();
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      if (tensors_[i].is_trained()) add_hook(i);
    }
  }

  distributed_data_parallel(const distributed_data_parallel &) = delete;
  distributed_data_parallel &operator=(const distributed_data_parallel &) = delete;

  ~distributed_data_parallel() {
    for (model_tensor &tensor : tensors_) {
      if (!tensor.is_trained()) continue;
      tensor.accumulator->del_post_hook(tensor.hook);
      if (tensor.values.grad().is_same(tensor.view)) tensor.values.mutable_grad() = torch::Tensor();
    }
  }

  /// Begins a step: call it before the forward pass. The weight counts with dist::divide::weighted,
  /// for example the number of samples of this rank.
  step_scope step(double weight = 1) {
    for (model_tensor &tensor : tensors_) {
      if (tensor.values.data_ptr() != tensor.address) {
        throw std::logic_error("distributed_data_parallel: the memory of " + tensor.name +
                               " was replaced; call to() and torch::load before you create the object");
      }
      if (tensor.is_trained()) attach_view(tensor);
    }
    return step_scope(*this, reducer_.step(weight));
  }

  /// For dist::reducer::clip, check, stats, layout and join. An index of the reducer is a position
  /// in names().
  dist::reducer &reducer() noexcept { return reducer_; }

  /// The names of the parameters, then those of the buffers.
  std::vector<std::string> names() const {
    std::vector<std::string> tensor_names;
    for (const model_tensor &tensor : tensors_) tensor_names.push_back(tensor.name);
    return tensor_names;
  }

 private:
  struct model_tensor {
    std::string name;
    torch::Tensor values;
    dist::param_role role = dist::param_role::trained;
    /// Where the values were when the reducer got them.
    void *address = nullptr;
    /// The gradient in memory of the reducer.
    torch::Tensor view{};
    /// The node of autograd that adds to the gradient. The parameter has a weak reference only. The
    /// type of the pointer depends on the version of PyTorch.
    decltype(torch::autograd::impl::grad_accumulator(torch::Tensor())) accumulator{};
    std::uintptr_t hook = 0;
    /// Whether the gradient was marked in this step.
    bool is_marked = false;
    /// Whether a backward pass outside of a step added to the gradient.
    bool has_local_gradient = false;

    bool is_trained() const { return role == dist::param_role::trained; }
  };

  /// The tensors of a module, each of them once: layers may share parameters.
  static std::vector<model_tensor> list_tensors(const torch::nn::Module &module) {
    std::vector<model_tensor> tensors;
    std::unordered_set<const c10::TensorImpl *> seen;
    const auto add = [&](const auto &named, auto role_of) {
      for (const auto &item : named) {
        const torch::Tensor &values = item.value();
        if (!values.defined() || !seen.insert(values.unsafeGetTensorImpl()).second) continue;
        if (!values.is_non_overlapping_and_dense()) {
          throw std::invalid_argument("distributed_data_parallel: " + item.key() + " has gaps in memory; make it contiguous");
        }
        tensors.push_back({item.key(), values, role_of(values), values.data_ptr()});
      }
    };
    add(module.named_parameters(), [](const torch::Tensor &values) {
      return values.requires_grad() ? dist::param_role::trained : dist::param_role::frozen;
    });
    add(module.named_buffers(), [](const torch::Tensor &) { return dist::param_role::buffer; });
    return tensors;
  }

  static std::vector<dist::param> list_params(const std::vector<model_tensor> &tensors) {
    std::vector<dist::param> params;
    for (const model_tensor &tensor : tensors) {
      const auto size = static_cast<std::size_t>(tensor.values.numel());
      const auto describe = [&] {
        return AT_DISPATCH_ALL_TYPES_AND3(
            torch::kHalf, torch::kBFloat16, torch::kBool, tensor.values.scalar_type(), "distributed_data_parallel",
            [&] { return dist::param(tensor.name, dist::view(static_cast<scalar_t *>(tensor.address), size)); });
      };
      dist::param param = describe().with_shape(tensor.values.sizes().vec()).with_role(tensor.role);
      // Not tested on a device: pass the stream of the backward pass in
      // dist::reducer_options::stream.
      if (tensor.values.is_cuda()) param = param.with_device(tensor.values.device().index());
      params.push_back(param);
    }
    return params;
  }

  static const dist::reducer_options &validated_options(const dist::reducer_options &options) {
    if (options.retryable || options.sharded) {
      throw std::invalid_argument("distributed_data_parallel: reducer_options::retryable and sharded are not supported");
    }
    return options;
  }

  /// Makes each gradient a view of memory of the reducer. With reducer_options::move_grads this
  /// changes after the first step.
  void attach_reducer_gradients() {
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      model_tensor &tensor = tensors_[i];
      if (!tensor.is_trained()) continue;
      void *gradient = AT_DISPATCH_FLOATING_TYPES_AND2(
          torch::kHalf, torch::kBFloat16, tensor.values.scalar_type(), "distributed_data_parallel",
          [&]() -> void * { return reducer_.grad<scalar_t>(i).data; });
      if (tensor.view.defined() && tensor.view.data_ptr() == gradient) continue;
      tensor.view = torch::from_blob(gradient, tensor.values.sizes(), tensor.values.strides(), tensor.values.options());
      tensor.values.mutable_grad() = tensor.view;
    }
  }

  void add_hook(std::size_t index) {
    const auto call = [this, index](const auto &outputs, const auto &) {
      on_gradient(index);
      return outputs;
    };
    model_tensor &param = tensors_[index];
    param.accumulator = torch::autograd::impl::grad_accumulator(param.values);
    param.hook = param.accumulator->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(call));
  }

  /// Called on a thread of autograd after it has added to the gradient. commit() reports the
  /// errors.
  void on_gradient(std::size_t index) noexcept {
    try {
      model_tensor &param = tensors_[index];
      attach_view(param);
      if (is_open_) {
        param.is_marked = true;
        reducer_.ready(index);
      } else {
        param.has_local_gradient = true;
      }
    } catch (...) {
      const std::lock_guard<std::mutex> lock(failure_mutex_);
      if (!failure_) failure_ = std::current_exception();
    }
  }

  /// Makes grad() the view again, after zero_grad() has removed it or autograd has made another
  /// tensor.
  static void attach_view(model_tensor &param) {
    torch::Tensor &gradient = param.values.mutable_grad();
    if (gradient.is_same(param.view)) return;
    const torch::NoGradGuard no_grad;
    if (gradient.defined()) {
      param.view.copy_(gradient.is_sparse() ? gradient.to_dense() : gradient);
    } else {
      param.view.zero_();
      param.has_local_gradient = false;
    }
    gradient = param.view;
  }

  dist::vote end_step(dist::step step, dist::vote own) {
    // Used in a backward pass before the step, but not in the step.
    std::vector<std::size_t> only_local;
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      model_tensor &tensor = tensors_[i];
      if (!tensor.is_trained() || tensor.is_marked) continue;
      attach_view(tensor);
      if (tensor.has_local_gradient) only_local.push_back(i);
    }
    if (const std::exception_ptr failure = close_step()) std::rethrow_exception(failure);
    step.ready(only_local);
    const dist::vote all_votes = step.commit(own);
    attach_reducer_gradients();
    return all_votes;
  }

  /// Returns the first error of the hooks.
  std::exception_ptr close_step() {
    is_open_ = false;
    for (model_tensor &tensor : tensors_) tensor.is_marked = tensor.has_local_gradient = false;
    const std::lock_guard<std::mutex> lock(failure_mutex_);
    return std::exchange(failure_, nullptr);
  }

  std::vector<model_tensor> tensors_;
  dist::reducer reducer_;
  bool is_open_ = false;
  std::mutex failure_mutex_;
  std::exception_ptr failure_;
};

#endif  // LIBTORCH_DDP_HPP
