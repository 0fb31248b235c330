// torch's operations as calls of the library.
#pragma once

#include "_c10d_issue.hpp"
#include "_c10d_sparse.hpp"

namespace {

// Returns the call that exchanges buffers of any lengths between all pairs of ranks.
auto exchange_call(dist_group_t* g, Buffers in, Buffers out, Elements e) {
  return [g, in = std::move(in), out = std::move(out), e](auto* o, auto** w) {
    return dist_all_to_all_v(
        g, in.inputs(), in.counts.data(), out.pointers.data(), out.counts.data(), e.type, o, w);
  };
}

// The part of the back end with the operations.
class Collectives : public Issuer {
 public:
  // -- Reductions

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override {
    const Tensor& t = only(tensors, "all_reduce");
    if (t.layout() != at::kStrided) return allreduce_sparse(tensors, opts);
    Moves moves;
    Tensor buffer = in_place(t, moves);
    const Elements e = reduced(t);
    const Operator op = operator_of(opts.reduceOp);
    auto call = [g = handle(), data = buffer.data_ptr(), count = e.of(buffer), e, op](
                    auto* o, auto** w) {
      return dist_all_reduce(g, data, data, count, e.type, op.number, o, w);
    };
    return issue(
        {"all_reduce", OpType::ALLREDUCE, tensors, tensors, op.factor}, opts, call,
        std::move(moves), std::move(buffer));
  }

  WorkPtr allreduce_coalesced(
      Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) override {
    return together({"all_reduce", OpType::ALLREDUCE_COALESCED, tensors, tensors}, opts, [&] {
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
    auto exchange = std::make_shared<SparseExchange>(t);
    auto call = [g = handle(), exchange](auto* o, auto** w) {
      const Tensor& p = exchange->payload;
      return dist_all_gather_bytes(g, p.data_ptr(), p.numel(), &exchange->blob, o, w);
    };
    auto finish = [exchange, t] { Tensor(t).copy_(exchange->sum()); };
    return issue(
        {"sparse_all_reduce", OpType::_ALLREDUCE_SPARSE, tensors, tensors}, opts,
        std::move(call), std::move(finish), exchange);
  }

  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& opts) override {
    const Tensor& t = only(tensors, "reduce");
    const auto root = static_cast<int32_t>(opts.rootRank);
    Moves moves;
    Tensor buffer = root == rank_ ? in_place(t, moves) : readable(t);
    const Elements e = reduced(t);
    const Operator op = operator_of(opts.reduceOp);
    void* data = buffer.data_ptr();
    auto call = [=, g = handle(), count = e.of(t), result = root == rank_ ? data : nullptr](
                    auto* o, auto** w) {
      return dist_reduce(g, data, result, count, e.type, op.number, root, o, w);
    };
    return issue(
        {"reduce", OpType::REDUCE, tensors, tensors, op.factor}, opts, call, std::move(moves),
        buffer);
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
    auto call = [g = handle(), in = Buffers(sources, e), to = target.data_ptr(), e, op](
                    auto* o, auto** w) {
      return dist_reduce_scatter_v(
          g, in.inputs(), in.counts.data(), to, e.type, op.number, o, w);
    };
    return issue(
        {"reduce_scatter", OpType::REDUCE_SCATTER, parts, outputs, op.factor}, opts,
        std::move(call), std::move(moves), std::move(sources), target);
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
    auto call = [=, g = handle(), from = data.data_ptr(), to = target.data_ptr(),
                 count = e.of(target)](auto* o, auto** w) {
      return dist_reduce_scatter(g, from, to, count, e.type, op.number, o, w);
    };
    return issue(
        {"_reduce_scatter_base", OpType::_REDUCE_SCATTER_BASE, input, output, op.factor}, opts,
        call, std::move(moves), data, target);
  }

  WorkPtr reduce_scatter_tensor_coalesced(
      Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& opts) override {
    TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "the lists have different lengths");
    return together(
        {"reduce_scatter_tensor_coalesced", OpType::REDUCE_SCATTER_TENSOR_COALESCED, inputs,
         outputs},
        opts, [&] {
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
    auto call = [g = handle(), data = buffer.data_ptr(), count = e.of(t), e,
                 root = static_cast<int32_t>(opts.rootRank)](auto* o, auto** w) {
      return dist_broadcast(g, data, count, e.type, root, o, w);
    };
    return issue(
        {"broadcast", OpType::BROADCAST, tensors, tensors}, opts, call, std::move(moves), buffer);
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
    auto call = [g = handle(), out = Buffers(places, e), from = data.data_ptr(), e](
                    auto* o, auto** w) {
      return dist_all_gather_v(g, from, out.pointers.data(), out.counts.data(), e.type, o, w);
    };
    return issue(
        {"all_gather", OpType::ALLGATHER, inputs, targets}, opts, std::move(call),
        std::move(moves), std::move(places), data);
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
    auto call = [g = handle(), from = data.data_ptr(), to = target.data_ptr(),
                 count = e.of(input), e](auto* o, auto** w) {
      return dist_all_gather(g, from, to, count, e.type, o, w);
    };
    return issue(
        {"_all_gather_base", OpType::_ALLGATHER_BASE, input, output}, opts, call,
        std::move(moves), data, target);
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
    return together({"all_gather", OpType::ALLGATHER_COALESCED, inputs, all}, opts, [&] {
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
        {"all_gather_into_tensor_coalesced", OpType::ALLGATHER_INTO_TENSOR_COALESCED, inputs,
         outputs},
        opts, [&] {
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
    auto call = [g = handle(), out = Buffers(places, e), from = data.data_ptr(),
                 count = e.of(input), e, root](auto* o, auto** w) {
      void* const* to = out.pointers.empty() ? nullptr : out.pointers.data();
      return dist_gather_v(g, from, count, to, out.counts.data(), e.type, root, o, w);
    };
    return issue(
        {"gather", OpType::GATHER, inputs, targets}, opts, std::move(call), std::move(moves),
        std::move(places), data);
  }

#ifdef C10D_BACKEND_HAS_RECONFIGURE
  WorkPtr gather_single(
      Tensor& output, Tensor& input, const c10d::GatherOptions& opts) override {
    const auto root = static_cast<int32_t>(opts.rootRank);
    const Elements e = moved(input);
    Moves moves;
    Tensor target, data = readable(input);
    Tensors outputs;
    if (rank_ == root) {
      TORCH_CHECK_VALUE(
          output.numel() == input.numel() * size_ &&
              output.scalar_type() == input.scalar_type(),
          "gather_single: the output does not have the size or the type of all inputs");
      target = writable(output, moves);
      data = apart(data, {target}, bytes_of(target) + rank_ * input.nbytes());
      outputs = {output};
    }
    auto call = [g = handle(), from = data.data_ptr(), count = e.of(input), e, root,
                 to = rank_ == root ? target.data_ptr() : nullptr](auto* o, auto** w) {
      return dist_gather(g, from, to, count, e.type, root, o, w);
    };
    return issue(
        {"gather", OpType::GATHER, input, outputs}, opts, call, std::move(moves), data, target);
  }
#endif

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
    auto call = [g = handle(), in = Buffers(sources, e), to = target.data_ptr(),
                 count = e.of(output), e, root](auto* o, auto** w) {
      const void* const* from = in.pointers.empty() ? nullptr : in.inputs();
      return dist_scatter_v(g, from, in.counts.data(), to, count, e.type, root, o, w);
    };
    return issue(
        {"scatter", OpType::SCATTER, parts.empty() ? outputs : parts, outputs}, opts,
        std::move(call), std::move(moves), std::move(sources), target);
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
    auto call = exchange_call(handle(), Buffers(sources, e), Buffers(places, e), e);
    return issue(
        {"all_to_all", OpType::ALLTOALL, inputs, outputs}, opts, std::move(call),
        std::move(moves), std::move(sources), std::move(places));
  }

  WorkPtr alltoall_base(
      Tensor& output, Tensor& input, std::vector<int64_t>& output_sizes,
      std::vector<int64_t>& input_sizes, const c10d::AllToAllOptions& opts) override {
    check_same_kind(output, {input}, "all_to_all_single");
    Moves moves;
    Tensor target = writable(output, moves);
    Tensor data = apart(readable(input), {target});
    const Elements e = moved(input);
    const Request request{"all_to_all", OpType::ALLTOALL_BASE, input, output};
    if (!output_sizes.empty() || !input_sizes.empty()) {
      Buffers in = split_rows(data, input_sizes, size_, e);
      Buffers out = split_rows(target, output_sizes, size_, e);
      auto call = exchange_call(handle(), std::move(in), std::move(out), e);
      return issue(request, opts, std::move(call), std::move(moves), data, target);
    }
    TORCH_CHECK_VALUE(
        input.numel() % size_ == 0 && input.numel() == output.numel(),
        "Tensor's dim 0 does not divide equally across group size");
    auto call = [g = handle(), from = data.data_ptr(), to = target.data_ptr(),
                 count = e.of(input) / size_, e](auto* o, auto** w) {
      return dist_all_to_all(g, from, to, count, e.type, o, w);
    };
    return issue(request, opts, call, std::move(moves), data, target);
  }

  WorkPtr barrier(const c10d::BarrierOptions& opts) override {
    auto call = [g = handle()](auto* o, auto** w) { return dist_barrier(g, o, w); };
    return issue({"barrier", OpType::BARRIER, {}, {}}, opts, call, Moves());
  }

  // -- Messages

  WorkPtr send(Tensors& tensors, int peer, int tag) override {
    const Tensor& t = only(tensors, "send");
    Tensor data = readable(t);
    const Elements e = moved(t);
    auto call = [=, g = handle(), from = data.data_ptr(), count = e.of(t)](auto* o, auto** w) {
      return dist_send(g, from, count, e.type, peer, tag, o, w);
    };
    return issue(
        {"send", OpType::SEND, tensors, tensors}, MessageOptions(), call, Moves(), data);
  }

  WorkPtr recv(Tensors& tensors, int peer, int tag) override {
    return receive("recv", OpType::RECV, tensors, peer, tag);
  }

  WorkPtr recvAnysource(Tensors& tensors, int tag) override {
    return receive("recvAnySource", OpType::RECVANYSOURCE, tensors, DIST_ANY_SOURCE, tag);
  }

 protected:
  using Issuer::Issuer;

 private:
  struct MessageOptions {
    Milliseconds timeout = kUnset;
    bool asyncOp = true;
  };

  WorkPtr receive(const char* title, OpType type, Tensors& tensors, int peer, int tag) {
    const Tensor& t = only(tensors, "recv");
    Moves moves;
    Tensor buffer = writable(t, moves);
    const Elements e = moved(t);
    auto call = [=, g = handle(), to = buffer.data_ptr(), count = e.of(t)](auto* o, auto** w) {
      return dist_recv(g, to, count, e.type, peer, tag, nullptr, o, w);
    };
    return issue(
        {title, type, tensors, tensors}, MessageOptions(), call, std::move(moves), buffer);
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
};

}  // namespace
