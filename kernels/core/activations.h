// Rows of activations as plain loops that the compiler vectorises for the ISA whose file includes them. Quantised
// values are the same on every ISA. Everything is in an anonymous namespace: no copy can leak from one ISA to another.
#pragma once

#include "core/epilogue.h"

namespace ktbench {
namespace {

constexpr int int8_largest = 127;
constexpr bf16 bf16_infinity = 0x7f80;

inline float widen(bf16 x) { return float_of(static_cast<std::uint32_t>(x) << 16); }

inline void copy_numbers(const bf16* from, int count, int depth, std::byte* row) {
  auto* to = reinterpret_cast<bf16*>(row);
  __builtin_memcpy(to, from, count * sizeof(bf16));
  __builtin_memset(to + count, 0, (depth - count) * sizeof(bf16));
}

inline void widen_numbers(const bf16* from, int count, int depth, std::byte* row) {
  auto* to = reinterpret_cast<float*>(row);
  for (int k = 0; k < count; ++k) to[k] = widen(from[k]);
  for (int k = count; k < depth; ++k) to[k] = 0;
}

// bf16 magnitudes are ordered like their bits; infinity and NaN come last.
inline bf16 largest_magnitude(const bf16* from, int count) {
  bf16 largest = 0;
  for (int k = 0; k < count; ++k) {
    const bf16 magnitude = from[k] & 0x7fff;
    largest = magnitude > largest ? magnitude : largest;
  }
  return largest;
}

// Symmetric int8 per row. `lift` first brings values whose reciprocal would overflow into range.
struct Int8Scale {
  float scale, lift, inverse;

  bool finite() const { return scale == scale; }
};

// A row with a NaN or an infinity gets a NaN scale: nothing computed from it is finite.
inline Int8Scale int8_scale(bf16 largest) {
  constexpr float small = 0x1p-64f, lifted = 0x1p64f;
  if (largest >= bf16_infinity) return {__builtin_nanf(""), 1, 0};
  if (largest == 0) return {0, 1, 0};
  const float lift = widen(largest) < small ? lifted : 1.0f;
  const float magnitude = widen(largest) * lift;
  return {magnitude / int8_largest / lift, lift, int8_largest / magnitude};
}

// rint, not a rounding addition: with FMA the addition would be contracted with the product, and break ties
// differently.
inline std::int32_t quantised(float x, const Int8Scale& s) {
  return static_cast<std::int32_t>(__builtin_rintf(x * s.lift * s.inverse));
}

inline void put_scale(std::byte* row, const RowFormat& format, const Int8Scale& s) {
  __builtin_memcpy(row + format.scale_at(), &s.scale, sizeof s.scale);
}

inline float row_scale(const Rows& rows, int r) {
  float scale;
  __builtin_memcpy(&scale, rows.data + r * rows.stride + rows.scale_at, sizeof scale);
  return scale;
}

inline void quantise_raised(const bf16* from, int count, const RowFormat& format, std::byte* row) {
  const Int8Scale s = int8_scale(largest_magnitude(from, count));
  if (!s.finite()) count = 0;
  auto* to = reinterpret_cast<std::uint8_t*>(row);
  for (int k = 0; k < count; ++k) to[k] = static_cast<std::uint8_t>(quantised(widen(from[k]), s) + 128);
  for (int k = count; k < format.depth; ++k) to[k] = 128;
  put_scale(row, format, s);
}

inline void quantise_wide(const bf16* from, int count, const RowFormat& format, std::byte* row) {
  const Int8Scale s = int8_scale(largest_magnitude(from, count));
  if (!s.finite()) count = 0;
  auto* to = reinterpret_cast<std::int16_t*>(row);
  const int whole = count / 4 * 4;
  for (int k = 0; k < whole; k += 4)
    for (int i = 0; i < 4; ++i) to[k + i] = static_cast<std::int16_t>(quantised(widen(from[k + i % 2 * 2 + i / 2]), s));
  for (int k = whole; k < format.depth; ++k) {
    const int source = k / 4 * 4 + k % 2 * 2 + k % 4 / 2;
    to[k] = source < count ? static_cast<std::int16_t>(quantised(widen(from[source]), s)) : std::int16_t{0};
  }
  put_scale(row, format, s);
}

inline const float* group_sums(const Rows& rows, int r) {
  return reinterpret_cast<const float*>(rows.data + r * rows.stride + rows.scale_at + line_bytes);
}

// The sums of a row's integers, which are `raised`.
template <class Integer>
inline void sum_groups(const RowFormat& format, int raised, std::byte* row) {
  const auto* numbers = reinterpret_cast<const Integer*>(row);
  auto* sums = reinterpret_cast<float*>(row + format.sums_at());
  for (int k = 0; format.sum_group && k < format.depth; k += format.sum_group) {
    int sum = 0;
    for (int i = k; i < k + format.sum_group; ++i) sum += numbers[i];
    *sums++ = static_cast<float>(sum - raised * format.sum_group);
  }
}

inline void prepare_row(const bf16* from, int count, const RowFormat& format, std::byte* row) {
  switch (format.kind) {
    case Activation::bf16: return copy_numbers(from, count, format.depth, row);
    case Activation::f32: return widen_numbers(from, count, format.depth, row);
    case Activation::u8: quantise_raised(from, count, format, row); return sum_groups<std::uint8_t>(format, 128, row);
    case Activation::s16: quantise_wide(from, count, format, row); return sum_groups<std::int16_t>(format, 0, row);
  }
}

}  // namespace
}  // namespace ktbench
