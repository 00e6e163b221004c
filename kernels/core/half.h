// IEEE half precision without F16C, where speed does not matter. In an anonymous namespace: no copy leaks between ISAs.
#pragma once

#include "core/layout.h"

namespace ktbench {
namespace {

inline float float_of_half(half x) {
  const std::uint32_t sign = (x & 0x8000u) << 16, magnitude = x & 0x7fffu;
  constexpr std::uint32_t smallest_normal = 0x0400, infinity = 0x7c00, rebias = (127u - 15) << 23;
  if (magnitude < smallest_normal) return (sign ? -0x1p-24f : 0x1p-24f) * static_cast<float>(magnitude);
  const std::uint32_t exponent = magnitude < infinity ? rebias : 2 * rebias;
  return __builtin_bit_cast(float, sign | ((magnitude << 13) + exponent));
}

// Round to nearest even; beyond 65519 it is infinity, a NaN stays one.
inline half half_of_float(float x) {
  const std::uint32_t bits = __builtin_bit_cast(std::uint32_t, x);
  const std::uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
  constexpr std::uint32_t smallest_normal = 0x38800000, overflow = 0x477ff000, infinity = 0x7f800000;
  constexpr std::uint32_t rebias = (127u - 15) << 23;
  if (magnitude > infinity) return static_cast<half>(sign | 0x7e00);
  if (magnitude >= overflow) return static_cast<half>(sign | 0x7c00);
  if (magnitude < smallest_normal) {  // a step of 2^-24, as those of floats from 0.5 on are
    const float shifted = __builtin_bit_cast(float, magnitude) + 0.5f;
    return static_cast<half>(sign | (__builtin_bit_cast(std::uint32_t, shifted) - 0x3f000000));
  }
  return static_cast<half>(sign | ((magnitude - rebias + 0xfff + (magnitude >> 13 & 1)) >> 13));
}

}  // namespace
}  // namespace ktbench
