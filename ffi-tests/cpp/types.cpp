// Which types are elements and buffers. Most of it is checked by the compiler.
#include "check.hpp"

#include <array>
#include <complex>
#include <cstddef>
#include <cstdint>
#if __has_include(<span>) && __cplusplus >= 202002L
#include <span>
#endif
#if __has_include(<mdspan>)
#include <mdspan>
#endif
#if __has_include(<stdfloat>)
#include <stdfloat>
#endif

// Types of other libraries, as these declare them.
struct alignas(2) __half {
  unsigned short bits;
};
struct alignas(2) __nv_bfloat16 {
  unsigned short bits;
};
struct __nv_fp8_e4m3 {
  unsigned char bits;
};
namespace c10 {
struct alignas(2) Half {
  unsigned short bits;
};
struct alignas(2) BFloat16 {
  unsigned short bits;
};
struct Float8_e5m2 {
  unsigned char bits;
};
template <class T>
struct alignas(2 * sizeof(T)) complex {
  T real, imaginary;
};
}  // namespace c10
namespace Eigen {
struct half {
  unsigned short bits;
};
struct bfloat16 {
  unsigned short bits;
};
}  // namespace Eigen
namespace half_float {
// The name alone is not enough: this has another size.
struct half {
  double not_a_half;
};
}  // namespace half_float

// A type of the program with a specialisation of dtype_of.
namespace mine {
struct half {
  std::uint16_t bits;
};

// A tensor as a smart pointer, without data() and size().
class tensor {
 public:
  explicit tensor(std::size_t n) : values_(std::make_shared<std::vector<float>>(n, 1.0F)) {}
  float *first() const { return values_->data(); }
  std::size_t count() const { return values_->size(); }

 private:
  std::shared_ptr<std::vector<float>> values_;
};
inline dist::buffer<float> as_buffer(const tensor &t) { return {t.first(), t.count()}; }

// The interface of mdspan, of two kinds of layout.
template <bool Exhaustive>
struct grid {
  struct mapping_type {
    std::size_t n;
    constexpr std::size_t required_span_size() const { return n; }
  };
  double *p;
  std::size_t n;
  double *data_handle() const { return p; }
  mapping_type mapping() const { return {n}; }
  static constexpr bool is_always_exhaustive() { return Exhaustive; }
};
struct empty {};
}  // namespace mine
template <>
struct dist::dtype_of<mine::half> : dist::dtype_is<DIST_F16> {};

using dist::dtype_v;
static_assert(dtype_v<float> == DIST_F32 && dtype_v<double> == DIST_F64 && dtype_v<const float> == DIST_F32);
static_assert(dtype_v<bool> == DIST_BOOL && dtype_v<char> == DIST_I8 && dtype_v<unsigned char> == DIST_U8);
static_assert(dtype_v<std::int8_t> == DIST_I8 && dtype_v<std::uint16_t> == DIST_U16 && dtype_v<short> == DIST_I16);
static_assert(dtype_v<int> == DIST_I32 && dtype_v<unsigned> == DIST_U32 && dtype_v<std::byte> == DIST_U8);
static_assert(dtype_v<long> == DIST_I64 && dtype_v<long long> == DIST_I64 && dtype_v<std::size_t> == DIST_U64);
static_assert(dtype_v<std::complex<float>> == DIST_C64 && dtype_v<std::complex<double>> == DIST_C128);
static_assert(dtype_v<__half> == DIST_F16 && dtype_v<__nv_bfloat16> == DIST_BF16 && dtype_v<__nv_fp8_e4m3> == DIST_F8E4M3);
static_assert(dtype_v<c10::Half> == DIST_F16 && dtype_v<c10::BFloat16> == DIST_BF16 && dtype_v<c10::Float8_e5m2> == DIST_F8E5M2);
static_assert(dtype_v<c10::complex<float>> == DIST_C64 && dtype_v<Eigen::half> == DIST_F16 && dtype_v<Eigen::bfloat16> == DIST_BF16);
static_assert(dtype_v<mine::half> == DIST_F16);
static_assert(!dist::is_reducible_v<half_float::half> && !dist::is_reducible_v<long double> && !dist::is_reducible_v<mine::empty>);
#ifdef __SIZEOF_INT128__
__extension__ using int128 = __int128;
static_assert(!dist::is_reducible_v<int128>);
#endif
#ifdef __STDCPP_FLOAT16_T__
static_assert(dtype_v<std::float16_t> == DIST_F16);
#endif
#ifdef __STDCPP_BFLOAT16_T__
static_assert(dtype_v<std::bfloat16_t> == DIST_BF16);
#endif
#ifdef __STDCPP_FLOAT32_T__
static_assert(dtype_v<std::float32_t> == DIST_F32);
#endif

using dist::detail::is_buffer;
static_assert(is_buffer<std::vector<float>> && is_buffer<std::array<int, 3>> && is_buffer<double[4]> && is_buffer<float>);
static_assert(is_buffer<const std::string> && is_buffer<dist::buffer<int>> && is_buffer<mine::tensor> && is_buffer<mine::grid<true>>);
static_assert(!is_buffer<mine::grid<false>> && !is_buffer<std::vector<bool>> && !is_buffer<float *> && !is_buffer<int[2][2]>);
static_assert(!is_buffer<dist::op> && !is_buffer<std::thread> && !is_buffer<std::nullptr_t> && !is_buffer<mine::empty>);

// Time-outs.
constexpr dist::time_limit default_limit;
static_assert(default_limit.ms() == 0 && dist::forever.ms() == DIST_WAIT_FOREVER);
static_assert(dist::time_limit(5s).ms() == 5000 && dist::time_limit(1us).ms() == 1 && dist::time_limit(1500us).ms() == 2);
static_assert(dist::time_limit(0s).ms() == DIST_NO_WAIT && dist::time_limit(-1s).ms() == DIST_NO_WAIT);
static_assert(dist::time_limit(std::chrono::hours::max()).ms() == DIST_WAIT_FOREVER);
static_assert(dist::time_limit(std::chrono::duration<double>(0.25)).ms() == 250);

namespace {

void reduce_every_type(const dist::group &g) {
  const int n = g.size();
  double c_array[2] = {1, 2};
  g.all_reduce(c_array);
  CHECK(c_array[1] == 2 * n);
  std::array<long, 2> array{1, 2};
  g.all_reduce(array);
  CHECK(array[1] == 2 * n);
  mine::tensor tensor(3);
  g.all_reduce(tensor);
  CHECK(tensor.first()[2] == static_cast<float>(n));
  // A tensor is a handle: it moves into the work, and comes back.
  CHECK(g.all_reduce_async(mine::tensor(2)).take().first()[0] == static_cast<float>(n));
  std::vector<double> values(6, 1);
  g.all_reduce(mine::grid<true>{values.data(), 6});
  CHECK(values[5] == n);
  // A temporary view is lent.
  dist::work lent = g.all_reduce_async(dist::view(values.data(), 3));
  lent.wait();
  CHECK(values[2] == n * n && values[3] == n);
  float scalar = 2;
  g.all_reduce(scalar);
  CHECK(scalar == static_cast<float>(2 * n));
  std::string text = g.rank() == 0 ? "text" : "----";
  g.broadcast(text, 0);
  CHECK(text == "text");
  const auto bytes = dist::bytes_of(dist::view(values.data(), 2));
  CHECK(bytes.size == 16 && static_cast<const void *>(bytes.data) == values.data());
  double total = 0;
  for (const double each : dist::view(values.data(), 2)) total += each;
  CHECK(total == values[0] + dist::view(values.data(), 2)[1]);
  c10::Half halves[2] = {{0x3c00}, {0x4000}};
  g.all_reduce(halves);
  CHECK(halves[0].bits == (n == 2 ? 0x4000 : 0x3c00));
#ifdef __cpp_lib_span
  std::span<double> span(values);
  g.all_reduce(span.first(1), dist::max);
  dist::work part = g.all_reduce_async(std::span(values).subspan(1, 2), dist::min);
  part.wait();
#endif
#ifdef __cpp_lib_mdspan
  std::mdspan<double, std::dextents<std::size_t, 2>> matrix(values.data(), 2, 3);
  g.all_reduce(matrix, dist::max);
#endif
}

}  // namespace

int main() {
  CHECK(std::string_view(dist::name_of_dtype(DIST_BF16)) == "bf16" && dist::size_of_dtype(DIST_C128) == 16);
  CHECK(std::string_view(dist::name_of_op(dist::max.code)) == dist_op_name(DIST_MAX));
  run_ranks(2, reduce_every_type);
  return 0;
}
