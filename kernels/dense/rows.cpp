// Compiled for any x86-64, AVX2 and AVX-512, without contraction: each product is rounded before it is added.
#include "dense/rows.h"

#include "dense/vectors.h"

namespace ktbench {
namespace {

constexpr int block = 32;  // elements with separate sums of squares, whatever the vectors' width
constexpr int parts = block / lane_pairs;

struct SquareSums {
  Floats even[parts] = {}, odd[parts] = {};

  void add(const bf16* x) {
#pragma GCC unroll 4
    for (int i = 0; i < parts; ++i) {
      const Words pairs = load<Words>(x + i * lane_pairs);
      even[i] += even_of(pairs) * even_of(pairs);
      odd[i] += odd_of(pairs) * odd_of(pairs);
    }
  }
  float total() const {
    float sums[block / 2], sum = 0;
    for (int i = 0; i < parts; ++i) store(even[i] + odd[i], sums + i * lanes);
    for (int half = block / 4; half > 0; half /= 2)
      for (int i = 0; i < half; ++i) sums[i] += sums[i + half];
    return sum + sums[0];
  }
};

float mean_of_squares(const bf16* x, int count) {
  SquareSums sums;
  const int whole = count / block * block;
  for (int k = 0; k < whole; k += block) sums.add(x + k);
  bf16 rest[block] = {};
  __builtin_memcpy(rest, x + whole, (count - whole) * sizeof(bf16));
  sums.add(rest);
  return sums.total() / static_cast<float>(count);
}

inline Floats to_bf16_and_back(Floats x) { return odd_of(rounded(x)); }

// out = norm(x, weight), rounded; the elements that do not fill a vector one by one.
template <class Each>
void norm_each(const bf16* x, const bf16* weight, int count, bf16* out, Each norm) {
  const int whole = count / lane_pairs * lane_pairs;
  for (int k = 0; k < whole; k += lane_pairs) {
    const Words xs = load<Words>(x + k), weights = load<Words>(weight + k);
    store(pairs_of(norm(even_of(xs), even_of(weights)), norm(odd_of(xs), odd_of(weights))), out + k);
  }
  for (int k = whole; k < count; ++k) out[k] = to_bf16(norm(Floats{} + widen(x[k]), Floats{} + widen(weight[k]))[0]);
}

void norm_row(const bf16* x, int count, const Norm& norm, bf16* out) {
  const float inverse = 1.0f / __builtin_sqrtf(mean_of_squares(x, count) + norm.eps);
  if (norm.offset == 0)
    norm_each(x, norm.weight, count, out, [=](Floats x, Floats w) { return w * to_bf16_and_back(x * inverse); });
  else
    norm_each(x, norm.weight, count, out, [=](Floats x, Floats w) { return x * inverse * (norm.offset + w); });
}

inline Floats rotated(Floats x, Floats cos, Floats other, Floats sin) {
  return to_bf16_and_back(x * cos) + to_bf16_and_back(other * sin);
}

inline Words rotated_pairs(Words x, Words cos, Words other, Words sin) {
  return pairs_of(rotated(even_of(x), even_of(cos), even_of(other), even_of(sin)),
                  rotated(odd_of(x), odd_of(cos), odd_of(other), odd_of(sin)));
}

// Inlined, so that a whole vector is one load, not a copy.
[[gnu::always_inline]] inline void rotate_numbers(const Rotation& rotation, int first, int count, bf16* x) {
  const int half = rotation.size / 2;
  const auto part = [&](const bf16* from) {
    bf16 numbers[lane_pairs] = {};
    __builtin_memcpy(numbers, from + first, count * sizeof(bf16));
    return load<Words>(numbers);
  };
  const Words low = part(x), high = part(x + half);
  const Words minus_high = high ^ 0x80008000u;
  const Words rotated_low = rotated_pairs(low, part(rotation.cos), minus_high, part(rotation.sin));
  const Words rotated_high = rotated_pairs(high, part(rotation.cos + half), low, part(rotation.sin + half));
  __builtin_memcpy(x + first, &rotated_low, count * sizeof(bf16));
  __builtin_memcpy(x + half + first, &rotated_high, count * sizeof(bf16));
}

void rotate_row(const Rotation& rotation, bf16* x) {
  const int half = rotation.size / 2, whole = half / lane_pairs * lane_pairs;
  for (int k = 0; k < whole; k += lane_pairs) rotate_numbers(rotation, k, lane_pairs, x);
  if (whole < half) rotate_numbers(rotation, whole, half - whole, x);
}

}  // namespace

const RowKernels KTBENCH_ROWS{norm_row, rotate_row};

}  // namespace ktbench
