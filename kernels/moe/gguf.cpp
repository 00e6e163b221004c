// Moves whole blocks between rows and strips, and computes the sums of their weights.
#include "moe/gguf.h"

#include <algorithm>
#include <cmath>

#include "core/activations.h"
#include "core/half.h"
#include "core/unpack.h"

namespace ktbench {
namespace {

// `q` are values, or codes of a table.
struct Block {
  std::uint16_t scale;  // a half, or a power of two
  std::int8_t q[block_depth];
};

constexpr Block poisoned{0x7e00, {}}, poisoned_power{255, {}};
constexpr bf16 bf16_nan = 0x7fc0;

// 0 if there is none in float32: then the half scale is 0, too.
float reciprocal(float d) {
  const float inverse = 1 / d;
  return __builtin_isfinite(inverse) ? inverse : 0;
}

// Half away from zero.
std::int8_t nearest(float x) {
  const int whole = static_cast<int>(x);
  const float rest = x - static_cast<float>(whole);
  return static_cast<std::int8_t>(whole + (rest >= 0.5f) - (rest <= -0.5f));
}

Block q8_0_of(const bf16* x) {
  const bf16 largest = largest_magnitude(x, block_depth);
  if (largest >= bf16_infinity) return poisoned;
  const float d = widen(largest) / 127, inverse = reciprocal(d);
  Block block{half_of_float(d), {}};
  for (int k = 0; k < block_depth; ++k) block.q[k] = nearest(widen(x[k]) * inverse);
  return block;
}

// The first of the largest magnitude becomes -8.
Block q4_0_of(const bf16* x) {
  const bf16 largest = largest_magnitude(x, block_depth);
  if (largest >= bf16_infinity) return poisoned;
  const bf16* first = x;
  while ((*first & 0x7fff) != largest) ++first;
  const float d = widen(*first) / -8, inverse = reciprocal(d);
  Block block{half_of_float(d), {}};
  for (int k = 0; k < block_depth; ++k) {
    const int raised = static_cast<int>(widen(x[k]) * inverse + 8.5f);
    block.q[k] = static_cast<std::int8_t>((raised < 15 ? raised : 15) - 8);
  }
  return block;
}

// Like compressed-tensors' symmetric quantisation: the largest magnitude becomes 7.5 steps, ties go to even.
Block int4_bf16_of(const bf16* x) {
  const bf16 largest = largest_magnitude(x, block_depth);
  if (largest >= bf16_infinity) return {bf16_nan, {}};
  Block block{to_bf16(widen(largest) / 7.5f), {}};
  const float inverse = reciprocal(widen(block.scale));
  for (int k = 0; k < block_depth; ++k)
    block.q[k] = static_cast<std::int8_t>(std::clamp(std::nearbyint(widen(x[k]) * inverse), -8.0f, 7.0f));
  return block;
}

// The code of the nearest value; for ties the first, or the last.
template <bool last>
std::int8_t nearest_code(const std::int8_t (&values)[16], float x) {
  int best = 0;
  for (int i = 1; i < 16; ++i) {
    const float here = std::fabs(x - static_cast<float>(values[i]));
    const float least = std::fabs(x - static_cast<float>(values[best]));
    if (here < least || (last && here == least)) best = i;
  }
  return static_cast<std::int8_t>(best);
}

// Initially the first of the largest magnitude becomes -127; then the scale is fitted to the chosen values, weighted by
// their squares.
Block iq4_nl_of(const bf16* x) {
  const bf16 largest = largest_magnitude(x, block_depth);
  if (largest >= bf16_infinity) return poisoned;
    if (widen(largest) < 1e-15f) return {};  // as in ggml
  const bf16* first = x;
  while ((*first & 0x7fff) != largest) ++first;
  const float inverse = iq4_nl_values[0] / widen(*first);
  float products = 0, squares = 0;
  Block block{};
  for (int k = 0; k < block_depth; ++k) {
    block.q[k] = nearest_code<true>(iq4_nl_values, widen(x[k]) * inverse);
    const float number = iq4_nl_values[block.q[k]], weight = widen(x[k]) * widen(x[k]);
    products += weight * number * widen(x[k]), squares += weight * number * number;
  }
  block.scale = half_of_float(squares > 0 ? products / squares : 0);
  return block;
}

// The power of two that scales the largest to between 4 and 8; the largest value is 6.
Block mxfp4_of(const bf16* x) {
  const bf16 largest = largest_magnitude(x, block_depth);
  if (largest >= bf16_infinity) return poisoned_power;
  if (largest == 0) return {};
  const int power = std::max(std::ilogb(widen(largest)) - 2 + 127, 0);
  Block block{static_cast<std::uint16_t>(power), {}};
  for (int k = 0; k < block_depth; ++k) block.q[k] = nearest_code<false>(e2m1_values, std::ldexp(widen(x[k]), 128 - power));
  return block;
}

Block q8_0_in(const std::byte* from) {
  Block block;
  __builtin_memcpy(&block.scale, from, sizeof block.scale);
  __builtin_memcpy(block.q, from + sizeof block.scale, sizeof block.q);
  return block;
}

Block q4_0_in(const std::byte* from) {
  Block block;
  __builtin_memcpy(&block.scale, from, sizeof block.scale);
  const auto* pairs = reinterpret_cast<const std::uint8_t*>(from + sizeof block.scale);
  for (int k = 0; k < block_depth / 2; ++k) {
    block.q[k] = static_cast<std::int8_t>((pairs[k] & 15) - 8);
    block.q[k + block_depth / 2] = static_cast<std::int8_t>((pairs[k] >> 4) - 8);
  }
  return block;
}

template <class Scale>
Block codes_in(const std::byte* from) {
  Scale scale;
  __builtin_memcpy(&scale, from, sizeof scale);
  Block block{scale, {}};
  const auto* pairs = reinterpret_cast<const std::uint8_t*>(from + sizeof scale);
  for (int k = 0; k < block_depth / 2; ++k) {
    block.q[k] = static_cast<std::int8_t>(pairs[k] & 15);
    block.q[k + block_depth / 2] = static_cast<std::int8_t>(pairs[k] >> 4);
  }
  return block;
}

// The place of block `b` of a row in the body of a strip.
struct Place {
  std::size_t scale, lines;  // of the strip's first row

  Place(const Format& format, int b) {
    const int within = b % format.record_groups();
    const std::size_t begin = format.bytes_before(b - within);
    scale = begin + 1ul * within * strip_rows * format.scale_bytes();
    lines = begin + (1ul + within * block_depth / format.line_depth()) * line_bytes;
  }
};

void put_q8_0(const Block& block, std::byte* line) {
  for (int k = 0; k < block_depth; k += 4, line += line_bytes) __builtin_memcpy(line, block.q + k, 4);
}

void put_q4_0(const Block& block, std::byte* line) {
  for (int k = 0; k < block_depth; k += 8, line += line_bytes)
    for (int i = 0; i < 4; ++i)
      line[i] = static_cast<std::byte>((block.q[k + i] & 15) | (block.q[k + i + 4] & 15) << 4);
}

void take_q8_0(const std::byte* line, Block& block) {
  for (int k = 0; k < block_depth; k += 4, line += line_bytes) __builtin_memcpy(block.q + k, line, 4);
}

void take_q4_0(const std::byte* line, Block& block) {
  for (int k = 0; k < block_depth; k += 8, line += line_bytes)
    for (int i = 0; i < 4; ++i) {
      const auto pair = static_cast<std::int8_t>(line[i]);
      block.q[k + i] = static_cast<std::int8_t>(static_cast<std::int8_t>(pair << 4) >> 4);
      block.q[k + i + 4] = static_cast<std::int8_t>(pair >> 4);
    }
}

void take_codes(const std::byte* line, Block& block) {
  for (int k = 0; k < block_depth; k += 8, line += line_bytes)
    for (int i = 0; i < 4; ++i) {
      block.q[k + i] = static_cast<std::int8_t>(static_cast<std::uint8_t>(line[i]) & 15);
      block.q[k + i + 4] = static_cast<std::int8_t>(static_cast<std::uint8_t>(line[i]) >> 4);
    }
}

// Of e2m1, whose table counts halves.
float float_of_power(std::uint16_t power) { return widen(bf16_of_power(static_cast<std::uint8_t>(power))); }

// The blocks of one format: quantised from values, read from a file, written to the lines of a strip, read from there;
// and their values.
struct Codec {
  Block (*quantised)(const bf16*);
  Block (*read)(const std::byte*);
  void (*put)(const Block&, std::byte* line);
  void (*take)(const std::byte* line, Block&);
  float (*scale)(std::uint16_t) = float_of_half;
  const std::int8_t* values = nullptr;  // of codes

  int number(const Block& block, int k) const { return values ? values[block.q[k]] : block.q[k]; }
};

constexpr Codec q8_0{q8_0_of, q8_0_in, put_q8_0, take_q8_0}, q4_0{q4_0_of, q4_0_in, put_q4_0, take_q4_0};
constexpr Codec int4_bf16{int4_bf16_of, q4_0_in, put_q4_0, take_q4_0, widen};
constexpr Codec iq4_nl{iq4_nl_of, codes_in<half>, put_q4_0, take_codes, float_of_half, iq4_nl_values};
constexpr Codec mxfp4{mxfp4_of, codes_in<std::uint8_t>, put_q4_0, take_codes, float_of_power, e2m1_values};

const Codec& codec_of(const Format& format) {
  switch (format.numbers) {
    case Numbers::int8: return q8_0;
    case Numbers::iq4_nl: return iq4_nl;
    case Numbers::e2m1: return mxfp4;
    default: return format.scales == Scales::block_bf16 ? int4_bf16 : q4_0;
  }
}

// `block_at(row, k)` makes the blocks.
template <class BlockAt>
void pack(int rows, int depth, const Format& format, std::byte* strip, BlockAt block_at) {
  const int blocks = format.padded_depth(depth) / block_depth;
  const Codec& codec = codec_of(format);
  std::byte* const body = strip + format.head_bytes();
  const std::size_t scale_bytes = format.scale_bytes();
  StripOffsets offsets;
  for (int r = 0; r < strip_rows; ++r) {
    double sum = 0;
    for (int b = 0; b < blocks; ++b) {
      const int k = b * block_depth;
      const Block block = r < rows && k < depth ? block_at(r, k) : Block{};
      const Place place(format, b);
      __builtin_memcpy(body + place.scale + r * scale_bytes, &block.scale, scale_bytes);  // little-endian
      codec.put(block, body + place.lines + 4 * r);
      int numbers = 0;
      for (int i = 0; i < block_depth; ++i) numbers += codec.number(block, i);
      sum += double{codec.scale(block.scale)} * numbers;
    }
    offsets.offset[r] = static_cast<float>(-128 * sum);
  }
  __builtin_memcpy(strip, &offsets, sizeof offsets);
}

}  // namespace

void pack_gguf(const MatrixView& from, int rows, int depth, const Format& format, std::byte* strip) {
  const auto quantised = codec_of(format).quantised;
  pack(rows, depth, format, strip, [&](int row, int k) { return quantised(from.at(row, k).data); });
}

void pack_gguf(const BlockView& from, int rows, int depth, const Format& format, std::byte* strip) {
  const auto block_in = codec_of(format).read;
  pack(rows, depth, format, strip, [&](int row, int k) { return block_in(from.at(row, k).data); });
}

void unpack_gguf(const std::byte* strip, int rows, int depth, const Format& format, float* to, std::size_t stride) {
  const std::byte* const body = strip + format.head_bytes();
  const Codec& codec = codec_of(format);
  const std::size_t scale_bytes = format.scale_bytes();
  for (int r = 0; r < strip_rows && r < rows; ++r)
    for (int k = 0; k < depth; k += block_depth) {
      const Place place(format, k / block_depth);
      Block block{};
      __builtin_memcpy(&block.scale, body + place.scale + r * scale_bytes, scale_bytes);
      codec.take(body + place.lines + 4 * r, block);
      const float scale = codec.scale(block.scale);
      for (int i = 0; i < block_depth; ++i) to[r * stride + k + i] = scale * static_cast<float>(codec.number(block, i));
    }
}

}  // namespace ktbench
