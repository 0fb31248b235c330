// The memory of tensors, and torch's types and operators, as the library uses them.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/extension.h>

#include "dist.h"

namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

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

// Copies that are due once an operation has succeeded.
class Moves {
 public:
  void add(Tensor to, Tensor from) { pairs_.emplace_back(std::move(to), std::move(from)); }
  bool empty() const { return pairs_.empty(); }
  void operator()() const {
    for (const auto& [to, from] : pairs_) Tensor(to).copy_(from);
  }

 private:
  std::vector<std::pair<Tensor, Tensor>> pairs_;
};

Tensor writable(const Tensor& t, Moves& moves) {
  check_dense(t);
  if (is_plain(t)) return t;
  Tensor buffer = at::empty(t.sizes(), t.options().memory_format(at::MemoryFormat::Contiguous));
  moves.add(t, buffer);
  return buffer;
}

Tensor in_place(const Tensor& t, Moves& moves) {
  if (is_plain(t)) return t;
  Tensor buffer = readable(t);
  moves.add(t, buffer);
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

Tensors all_writable(const Tensors& tensors, Moves& moves) {
  Tensors result;
  for (const Tensor& t : tensors) result.push_back(writable(t, moves));
  return result;
}

Tensors all_apart(const Tensors& tensors, const Tensors& others, const char* allowed) {
  Tensors result;
  for (const Tensor& t : tensors) result.push_back(apart(readable(t), others, allowed));
  return result;
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

}  // namespace
