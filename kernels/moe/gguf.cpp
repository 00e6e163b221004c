// Whole blocks move between rows and strips; sums of their weights are kept on the way.
#include "moe/gguf.h"

#include "core/activations.h"
#include "core/half.h"

namespace ktbench {
namespace {

struct Block {
  half scale;
  std::int8_t q[block_depth];
};

constexpr Block poisoned{0x7e00, {}};

// 0 where there is none in float32: then the half scale is 0, too.
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

std::int32_t sum_of(const Block& block) {
  std::int32_t sum = 0;
  for (const std::int8_t q : block.q) sum += q;
  return sum;
}

std::size_t record_begin(const Format& format, int b) {
  return format.bytes_before(b / blocks_per_record * blocks_per_record);
}

// Where block `b` of a row lies in the body of a strip.
struct Place {
  std::size_t scale, lines;  // of the strip's first row

  Place(const Format& format, int b)
      : scale(record_begin(format, b) + b % blocks_per_record * strip_rows * sizeof(half)),
        lines(record_begin(format, b) +
              (1ul + b % blocks_per_record * block_depth / format.line_depth()) * line_bytes) {}
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

// What the blocks of one format are: made of numbers, read from a file, put into the lines of a strip, taken from
// there.
struct Codec {
  Block (*quantised)(const bf16*);
  Block (*read)(const std::byte*);
  void (*put)(const Block&, std::byte* line);
  void (*take)(const std::byte* line, Block&);
};

constexpr Codec q8_0{q8_0_of, q8_0_in, put_q8_0, take_q8_0}, q4_0{q4_0_of, q4_0_in, put_q4_0, take_q4_0};

const Codec& codec_of(const Format& format) { return format.numbers == Numbers::int8 ? q8_0 : q4_0; }

// `block_at(row, k)` makes the blocks.
template <class BlockAt>
void pack(int rows, int depth, const Format& format, std::byte* strip, BlockAt block_at) {
  const int blocks = format.padded_depth(depth) / block_depth;
  const Codec& codec = codec_of(format);
  std::byte* const body = strip + format.head_bytes();
  StripOffsets offsets;
  for (int r = 0; r < strip_rows; ++r) {
    double sum = 0;
    for (int b = 0; b < blocks; ++b) {
      const int k = b * block_depth;
      const Block block = r < rows && k < depth ? block_at(r, k) : Block{};
      const Place place(format, b);
      __builtin_memcpy(body + place.scale + r * sizeof(half), &block.scale, sizeof(half));
      codec.put(block, body + place.lines + 4 * r);
      sum += double{float_of_half(block.scale)} * sum_of(block);
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
  for (int r = 0; r < strip_rows && r < rows; ++r)
    for (int k = 0; k < depth; k += block_depth) {
      const Place place(format, k / block_depth);
      Block block;
      __builtin_memcpy(&block.scale, body + place.scale + r * sizeof(half), sizeof(half));
      codec.take(body + place.lines + 4 * r, block);
      const float scale = float_of_half(block.scale);
      for (int i = 0; i < block_depth; ++i) to[r * stride + k + i] = scale * static_cast<float>(block.q[i]);
    }
}

}  // namespace ktbench
