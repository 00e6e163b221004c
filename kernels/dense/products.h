// The products of attention. Scores: dot products along the rows of some keys and heads at once. Values: a few numbers
// of every head's sum stay in registers over a chunk's positions. Everything is in an anonymous namespace, see
// core/epilogue.h.
#pragma once

#include "core/lines.h"
#include "dense/attend.h"
#include "dense/vectors.h"

namespace ktbench {
namespace {

constexpr int chunk = attend_chunk;
constexpr int widest = 32;  // row sizes are padded to a multiple of every ISA's lane_pairs
constexpr int line_numbers = line_bytes / static_cast<int>(sizeof(bf16));

// Products of keys and queries, and of values and weights. With BF16 dot products two positions are one step, and
// weights are rounded as Transformers rounds its softmax; their sum is that of the rounded ones.
#ifdef __AVX512BF16__

using Operand = Words;
struct Values {
    Words even, odd;  // of two positions, interleaved
};
constexpr int step = 2;

inline Operand operand(Words pairs) { return pairs; }
inline void add_dots(Floats& sum, Words a, Words b) { asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b)); }
inline Values values_of(const bf16* row, const bf16* next) {
  const Words a = load<Words>(row), b = load<Words>(next);
  return {(a & 0xffffu) | b << 16, a >> 16 | (b & 0xffff0000u)};
}
inline Words weight_at(const float* weights, int position) { return Words{} + bits_of(weights[position / step]); }
// Of lane_pairs positions, where add_values finds them. Returns what they add up to, by lanes.
inline Floats keep_weights(Floats a, Floats b, float* weights, int position) {
  const Words kept = reinterpret_cast<Words>(_mm512_cvtne2ps_pbh(b, a));
  store(kept, weights + position / step);
  return even_of(kept) + odd_of(kept);
}

#else

struct Operand {
  Floats even, odd;
};
using Values = Operand;
constexpr int step = 1;

inline Operand operand(Words pairs) { return {even_of(pairs), odd_of(pairs)}; }
inline void add_dots(Floats& sum, const Operand& k, const Operand& q) {
  sum += k.even * q.even;
  sum += k.odd * q.odd;
}
inline void add_dots(Floats& sum, Floats values, Floats weight) { sum += values * weight; }
inline Values values_of(const bf16* row, const bf16*) { return operand(load<Words>(row)); }
inline Floats weight_at(const float* weights, int position) { return weights[position] - Floats{}; }
// Of lane_pairs positions, where add_values finds them. Returns what they add up to, by lanes.
inline Floats keep_weights(Floats a, Floats b, float* weights, int position) {
  store(a, weights + position);
  store(b, weights + position + lanes);
  return a + b;
}

#endif

struct CacheRows {
  const bf16* data;
  std::size_t stride;
  int size;  // padded

  const bf16* operator[](int position) const { return data + position * stride; }
};

// The next rows, prefetched into L2 a line at a time during other work. All at once would exceed the core's outstanding
// fetches, and it would wait: 32,768 positions took 5.0 ms that way, and 3.0 ms this way (Zen 4).
class NextRows {
 public:
  NextRows(const CacheRows& rows, int count) : rows_(rows), left_(count) {}

  void fetch(int lines) {
    for (; lines > 0 && left_ > 0; --lines) {
      __builtin_prefetch(rows_.data + at_, 0, 2);
      at_ += line_numbers;
      if (at_ >= rows_.size) at_ = 0, rows_.data += rows_.stride, --left_;
    }
  }

 private:
  CacheRows rows_;
  int left_, at_ = 0;
};

// Rows at arbitrary addresses.
struct ScatteredRows {
  const bf16* const* row;
  int size;  // padded

  const bf16* operator[](int position) const { return row[position]; }
};

// See NextRows.
class NextScatteredRows {
 public:
  NextScatteredRows(const ScatteredRows& rows, int count) : rows_(rows), left_(count) {}

  void fetch(int lines) {
    for (; lines > 0 && left_ > 0; --lines) {
      __builtin_prefetch(*rows_.row + at_, 0, 2);
      at_ += line_numbers;
      if (at_ >= rows_.size) at_ = 0, ++rows_.row, --left_;
    }
  }

 private:
  ScatteredRows rows_;
  int left_, at_ = 0;
};

// scores[head][position] = q . k. The heads of a group together prefetch all of `next`, a few lines with every step.
template <int heads, class Rows, class Next>
void score(const Operand* q, int q_stride, const Rows& keys, int positions, Next& next, int lines, float* scores) {
  constexpr int at_once = lanes / heads;
  for (int first = 0; first < positions; first += at_once) {
    const bf16* row[at_once];
    for (int i = 0; i < at_once; ++i) row[i] = keys[smaller(first + i, positions - 1)];
    Floats sums[lanes];
    clear(sums);
    for (int n = 0; n < keys.size / lane_pairs; ++n) {
      Operand part[heads];
#pragma GCC unroll 4
      for (int h = 0; h < heads; ++h) part[h] = q[h * q_stride + n];
#pragma GCC unroll 16
      for (int i = 0; i < at_once; ++i) {
        const Operand k = operand(load<Words>(row[i] + n * lane_pairs));
#pragma GCC unroll 4
        for (int h = 0; h < heads; ++h) add_dots(sums[h * at_once + i], k, part[h]);
      }
      keep_in_registers(sums);
    }
    next.fetch(lines);
    float together[lanes];
    store(sums_of(sums), together);
    for (int h = 0; h < heads; ++h)
      __builtin_memcpy(scores + h * chunk + first, together + h * at_once, at_once * sizeof(float));
  }
}

// sums = sums * factor + weights . values
template <int heads, class Rows, class Next>
void add_values(const float* weights, const float* factors, const Rows& values, int positions, Next& next, float* sums,
                std::size_t sums_stride) {
  for (int at = 0; at < values.size; at += lane_pairs) {
    Floats acc[2 * heads];
#pragma GCC unroll 16
    for (int i = 0; i < 2 * heads; ++i)
      acc[i] = load<Floats>(sums + i / 2 * sums_stride + at + i % 2 * lanes) * factors[i / 2];
    for (int p = 0; p < positions; p += step) {
      const Values v = values_of(values[p] + at, values[smaller(p + step - 1, positions - 1)] + at);
      next.fetch(step);
#pragma GCC unroll 8
      for (int h = 0; h < heads; ++h) {
        const auto weight = weight_at(weights + h * chunk, p);
        add_dots(acc[2 * h], v.even, weight);
        add_dots(acc[2 * h + 1], v.odd, weight);
      }
      keep_in_registers(acc);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 2 * heads; ++i) store(acc[i], sums + i / 2 * sums_stride + at + i % 2 * lanes);
  }
}

}  // namespace
}  // namespace ktbench
