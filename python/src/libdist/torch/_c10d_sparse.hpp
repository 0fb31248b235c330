// The sum of the sparse tensors of all ranks.
#pragma once

#include "_c10d_tensors.hpp"

namespace {

// An exchange of sparse tensors. Each rank gives its indices and values as a string of bytes.
struct SparseExchange {
  explicit SparseExchange(const Tensor& t)
      : own(t.coalesce()), payload(at::cat({raw_bytes(own.indices()), raw_bytes(own.values())})) {}
  ~SparseExchange() { dist_blob_release(blob); }
  SparseExchange(const SparseExchange&) = delete;
  SparseExchange& operator=(const SparseExchange&) = delete;

  // Adds the tensors of all ranks, after the exchange.
  Tensor sum() const {
    std::vector<int64_t> shape = own.values().sizes().vec();
    const int64_t dims = own.sparse_dim();
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

  // This rank's tensor, and its string.
  Tensor own;
  Tensor payload;
  dist_blob_t* blob = nullptr;

 private:
  static Tensor raw_bytes(const Tensor& t) {
    return t.contiguous().view(at::kByte).reshape({-1});
  }
};

}  // namespace
