// bfloat16: the upper half of a float. It has the range of a float, and 8 bits of precision.
#ifndef TRAIN_DDP_BF16_HPP
#define TRAIN_DDP_BF16_HPP

#include <dist.hpp>

#include <cstdint>
#include <cstring>

struct bf16 {
  std::uint16_t bits;
};

// The element type of libdist for bf16.
template <>
struct dist::dtype_of<bf16> : dist::dtype_is<DIST_BF16> {};

// Rounds to the nearest bf16, ties to even. NaN stays NaN.
inline bf16 to_bf16(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  if (value != value) return {static_cast<std::uint16_t>((bits >> 16) | 0x40)};
  bits += 0x7fff + ((bits >> 16) & 1);
  return {static_cast<std::uint16_t>(bits >> 16)};
}

inline float to_float(bf16 value) {
  const std::uint32_t bits = static_cast<std::uint32_t>(value.bits) << 16;
  float result;
  std::memcpy(&result, &bits, sizeof result);
  return result;
}

#endif  // TRAIN_DDP_BF16_HPP
