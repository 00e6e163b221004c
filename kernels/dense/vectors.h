// The native vector of the ISA whose file includes this, and bf16 in it: two neighbours share a 32-bit lane, so one
// load gives a vector of the even and one of the odd elements. Everything is in an anonymous namespace, see
// core/epilogue.h.
#pragma once

#include <utility>

#include "core/activations.h"

namespace ktbench {
namespace {

#if defined(__AVX512F__)
constexpr int vector_bytes = 64;
#elif defined(__AVX2__)
constexpr int vector_bytes = 32;
#else
constexpr int vector_bytes = 16;
#endif
constexpr int lanes = vector_bytes / 4;
constexpr int lane_pairs = 2 * lanes;  // bf16 numbers in a vector

typedef float Floats __attribute__((vector_size(vector_bytes)));
typedef std::uint32_t Words __attribute__((vector_size(vector_bytes)));
typedef std::int32_t Integers __attribute__((vector_size(vector_bytes)));

template <class Vector>
inline Vector load(const void* from) {
  Vector v;
  __builtin_memcpy(&v, from, sizeof v);
  return v;
}

template <class Vector>
inline void store(Vector v, void* to) {
  __builtin_memcpy(to, &v, sizeof v);
}

inline Floats even_of(Words pairs) { return reinterpret_cast<Floats>(pairs << 16); }
inline Floats odd_of(Words pairs) { return reinterpret_cast<Floats>(pairs & 0xffff0000u); }

// To nearest even, in the upper half of each lane; a NaN stays a NaN. Compared with a sign, as AVX2 can.
inline Words rounded(Floats x) {
  const Words bits = reinterpret_cast<Words>(x);
  const Words nearest = bits + 0x7fffu + ((bits >> 16) & 1u);
  return reinterpret_cast<Integers>(bits & 0x7fffffffu) > 0x7f800000 ? bits | 0x400000u : nearest;
}

inline Words pairs_of(Floats even, Floats odd) { return rounded(even) >> 16 | (rounded(odd) & 0xffff0000u); }

inline Floats larger(Floats a, Floats b) { return a > b ? a : b; }

template <int distance, int... lane>
inline Floats swapped(Floats x, std::integer_sequence<int, lane...>) {
  return __builtin_shufflevector(x, x, (lane ^ distance)...);
}

inline float largest_lane(Floats x) {
  using Lanes = std::make_integer_sequence<int, lanes>;
  if constexpr (lanes > 8) x = larger(x, swapped<8 % lanes>(x, Lanes{}));
  if constexpr (lanes > 4) x = larger(x, swapped<4 % lanes>(x, Lanes{}));
  x = larger(x, swapped<2>(x, Lanes{}));
  x = larger(x, swapped<1>(x, Lanes{}));
  return x[0];
}

inline float sum_of_lanes(Floats x) {
  float sum = 0;
  for (int i = 0; i < lanes; ++i) sum += x[i];
  return sum;
}

// Lane l of the result comes from a if l lacks `bit`, otherwise from b: the sum of the two lanes that differ in `bit`.
template <int bit, int... lane>
inline Floats halved(Floats a, Floats b, std::integer_sequence<int, lane...>) {
  return __builtin_shufflevector(a, b, (lane & bit ? lanes + lane : lane)...) +
         __builtin_shufflevector(a, b, (lane & bit ? lanes + (lane ^ bit) : lane ^ bit)...);
}

// Lane l: the sum of the lanes of vector l.
template <int bit = lanes / 2>
inline Floats sums_of(Floats (&v)[lanes]) {
#pragma GCC unroll 8
  for (int i = 0; i < bit; ++i) v[i] = halved<bit>(v[i], v[i + bit], std::make_integer_sequence<int, lanes>{});
  if constexpr (bit > 1) return sums_of<bit / 2>(v);
  return v[0];
}

// exp of x <= 0, relative error 2e-7 (Cephes' coefficients); constant below -87, 1.6e-38.
inline Floats exp_of(Floats x) {
  x = x < -87.0f ? Floats{} - 87.0f : x;
  constexpr float shifter = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const Floats shifted = x * 1.44269504f + shifter;
  const Floats n = shifted - shifter;
  const Floats r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  Floats p = Floats{} + 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  return p * reinterpret_cast<Floats>((reinterpret_cast<Words>(shifted) - bits_of(shifter) + 127u) << 23);
}

inline float exp_of(float x) { return exp_of(Floats{} + x)[0]; }

}  // namespace
}  // namespace ktbench
