// Element types: dtype_of<T> maps a C++ type to a DIST_ constant.
#ifndef DIST_TYPES_HPP
#define DIST_TYPES_HPP

#include "config.hpp"

#include <complex>
#include <cstddef>
#include <string_view>
#include <type_traits>

DIST_HPP_BEGIN

namespace detail {

template <class T>
constexpr std::string_view signature() {
  return __PRETTY_FUNCTION__;
}

/// The name of a type, as the compiler prints it.
template <class T>
constexpr std::string_view type_name() {
  constexpr std::string_view text = signature<T>();
  constexpr std::size_t begin = text.find("T = ") + 4;
  return text.substr(begin, text.find_first_of(";]", begin) - begin);
}

struct named_type {
  std::string_view name;
  dist_dtype_t dtype;
  std::size_t bytes;
};

/// Types with the representation of an element type, by name. The header knows them without the headers
/// that define them, whichever is included first.
inline constexpr named_type named_types[] = {
    // Types of the compiler; those of <stdfloat> are aliases of them.
    {"_Float16", DIST_F16, 2},
    {"__bf16", DIST_BF16, 2},
    {"std::bfloat16_t", DIST_BF16, 2},
    {"_Float32", DIST_F32, 4},
    {"_Float64", DIST_F64, 8},
    // CUDA and HIP
    {"__half", DIST_F16, 2},
    {"__nv_bfloat16", DIST_BF16, 2},
    {"__hip_bfloat16", DIST_BF16, 2},
    {"hip_bfloat16", DIST_BF16, 2},
    {"__nv_fp8_e4m3", DIST_F8E4M3, 1},
    {"__nv_fp8_e5m2", DIST_F8E5M2, 1},
    {"thrust::complex<float>", DIST_C64, 8},
    {"thrust::complex<double>", DIST_C128, 16},
    // PyTorch
    {"c10::Half", DIST_F16, 2},
    {"c10::BFloat16", DIST_BF16, 2},
    {"c10::Float8_e4m3fn", DIST_F8E4M3, 1},
    {"c10::Float8_e5m2", DIST_F8E5M2, 1},
    {"c10::complex<float>", DIST_C64, 8},
    {"c10::complex<double>", DIST_C128, 16},
    // Eigen
    {"Eigen::half", DIST_F16, 2},
    {"Eigen::bfloat16", DIST_BF16, 2},
    // CUTLASS
    {"cutlass::half_t", DIST_F16, 2},
    {"cutlass::bfloat16_t", DIST_BF16, 2},
    {"cutlass::float_e4m3_t", DIST_F8E4M3, 1},
    {"cutlass::float_e5m2_t", DIST_F8E5M2, 1},
    // half.sourceforge.net
    {"half_float::half", DIST_F16, 2},
};

/// The constant of a named type, or 0.
template <class T>
constexpr dist_dtype_t dtype_by_name() {
  for (const named_type &type : named_types) {
    if (type.name == type_name<T>() && type.bytes == sizeof(T)) return type.dtype;
  }
  return 0;
}

/// The constant of an integer type, by its size and sign, or 0.
template <class T>
constexpr dist_dtype_t dtype_of_integer() {
  constexpr dist_dtype_t none = 0;
  constexpr bool is_signed = std::is_signed_v<T>;
  switch (sizeof(T)) {
    case 1: return is_signed ? DIST_I8 : DIST_U8;
    case 2: return is_signed ? DIST_I16 : DIST_U16;
    case 4: return is_signed ? DIST_I32 : DIST_U32;
    case 8: return is_signed ? DIST_I64 : DIST_U64;
    default: return none;
  }
}

template <class T>
constexpr dist_dtype_t known_dtype() {
  if constexpr (std::is_same_v<T, bool>) {
    return DIST_BOOL;
  } else if constexpr (std::is_same_v<T, std::byte>) {
    return DIST_U8;
  } else if constexpr (std::is_integral_v<T>) {
    return dtype_of_integer<T>();
  } else if constexpr (std::is_same_v<T, float>) {
    return DIST_F32;
  } else if constexpr (std::is_same_v<T, double>) {
    return DIST_F64;
  } else if constexpr (std::is_same_v<T, std::complex<float>>) {
    return DIST_C64;
  } else if constexpr (std::is_same_v<T, std::complex<double>>) {
    return DIST_C128;
  } else {
    return dtype_by_name<T>();
  }
}

}  // namespace detail

/// The element type of a C++ type; its value is 0 for a type that the library cannot reduce.
///
/// It is open: `template <> struct dist::dtype_of<my::half> : dist::dtype_is<DIST_F16> {};`
template <class T, class Enable = void>
struct dtype_of : std::integral_constant<dist_dtype_t, detail::known_dtype<T>()> {};

/// For specialisations of dtype_of.
template <dist_dtype_t Value>
using dtype_is = std::integral_constant<dist_dtype_t, Value>;

/// The DIST_ constant of a type.
template <class T>
inline constexpr dist_dtype_t dtype_v = dtype_of<std::remove_cv_t<T>>::value;

/// Whether built-in operators can reduce elements of a type.
template <class T>
inline constexpr bool is_reducible_v = dtype_v<T> != 0;

/// The name of an element type, such as "f32"; "unknown dtype" for a number that is none.
inline const char *name_of_dtype(dist_dtype_t dtype) noexcept { return dist_dtype_name(dtype); }

/// The size of an element in bytes; 0 for a number that is no type.
inline std::size_t size_of_dtype(dist_dtype_t dtype) noexcept { return dist_dtype_size(dtype); }

namespace detail {

/// How elements travel in calls that do not reduce: as their element type, or as bytes.
template <class T>
struct wire {
  static constexpr bool is_typed = is_reducible_v<T>;
  static constexpr dist_dtype_t dtype = is_typed ? dtype_v<T> : DIST_U8;
  static constexpr std::size_t units = is_typed ? 1 : sizeof(T);
};

}  // namespace detail

DIST_HPP_END

#endif  // DIST_TYPES_HPP
