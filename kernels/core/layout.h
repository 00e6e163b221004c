// The packed weight layout that every ISA reads, and the geometry of one MoE layer.
//
// A strip holds 16 output rows along all of k. Its body is a sequence of 64-byte lines, each with four bytes for every
// row: two bf16, four int8 or eight int4 neighbours along k. Sixteen lines of bf16 or int8 are at once the B operand of
// an AMX tile multiplication and sixteen operands of the AVX-512 and AVX2 dot products. One token reads a single
// sequential stream. Gate strip i is followed by up strip i: SwiGLU is an epilogue of one task.
//
//   bf16  [line...]                                         a line: [row][2 k]
//   int8  StripScales [line...]                             a line: [row][4 k]
//   int4  StripScales {group scales of 4 groups, [line...] x 4}   a line: [row][4 bytes], k and k + 4 in a byte
//   q8_0  StripOffsets {half scales of 2 groups, [8 lines] x 2}   a line as of int8
//   q4_0  StripOffsets {half scales of 2 groups, [4 lines] x 2}   a line as of int4
//
// q8_0 and q4_0 hold the numbers of GGUF's blocks of those names (ggml-common.h) as they are, in the order of lines.
//
// Everything is padded with zeros: k to whole tiles, groups or records of a GGUF format, rows to whole strips.
//
// An expert: gate and up strips, down strips, and where the layer has them float32 biases: gate, up, down, a line for
// each strip.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ktbench {

using bf16 = std::uint16_t;

using half = std::uint16_t;  // IEEE 754

enum class Precision : std::uint8_t { bf16, int8, int4, q8_0, q4_0 };
inline constexpr int precisions = 5;

inline constexpr int strip_rows = 16;
inline constexpr int line_bytes = 64;
inline constexpr int tile_lines = 16;
inline constexpr int tile_bytes = tile_lines * line_bytes;
inline constexpr int groups_per_record = 4;  // int4: their scales fill one line
inline constexpr int gguf_depth = 32;        // q8_0, q4_0: of a block, weights along k that share a scale
inline constexpr int blocks_per_record = 2;  // their scales fill one line, too

constexpr int round_up(int n, int multiple) { return (n + multiple - 1) / multiple * multiple; }

// Leads an int8 or int4 strip: weight = row scale x int8, or row scale x group scale x int4.
struct StripScales {
  float scale[strip_rows];
  std::int32_t offset[strip_rows];  // -128 x the row's sum: what activations raised by 128 add to a product
};

// Leads a strip of a GGUF format: weight = group scale x integer.
struct StripOffsets {
  float offset[strip_rows];  // -128 x the row's sum of weights
};

// How numbers are stored. `group` counts the k that share a scale, 0 of bf16 and int8.
struct Format {
  Precision precision = Precision::bf16;
  int group = 0;

  bool is_gguf() const { return precision == Precision::q8_0 || precision == Precision::q4_0; }
  int line_depth() const {
    const bool bytes = precision == Precision::int8 || precision == Precision::q8_0;
    return precision == Precision::bf16 ? 2 : bytes ? 4 : 8;
  }
  int depth_multiple() const { return precision == Precision::bf16 ? 32 : group > 64 ? group : 64; }
  int padded_depth(int depth) const { return round_up(depth, depth_multiple()); }
  int head_bytes() const {
    return precision == Precision::bf16 ? 0 : static_cast<int>(is_gguf() ? sizeof(StripOffsets) : sizeof(StripScales));
  }
  int groups(int depth) const { return group ? depth / group : 0; }
  int record_groups() const { return is_gguf() ? blocks_per_record : groups_per_record; }
  // Of a format with groups, before the record that begins with group `g`.
  std::size_t bytes_before(int g) const {
    return static_cast<std::size_t>(g / record_groups() + g * group / line_depth()) * line_bytes;
  }
  // Of a strip whose k is padded.
  std::size_t strip_bytes(int depth) const {
    const std::size_t lines = depth / line_depth();
    const std::size_t scale_lines = (groups(depth) + record_groups() - 1) / record_groups();
    return head_bytes() + (lines + scale_lines) * line_bytes;
  }
};

struct Geometry {
  int experts;
  int hidden;
  int intermediate;
  Format format = {};
  bool biases = false;

  int gate_strips() const { return round_up(intermediate, 2 * strip_rows) / strip_rows; }
  int down_strips() const { return round_up(hidden, 2 * strip_rows) / strip_rows; }
  int hidden_depth() const { return format.padded_depth(hidden); }
  int intermediate_depth() const { return format.padded_depth(intermediate); }
  std::size_t gate_strip_bytes() const { return format.strip_bytes(hidden_depth()); }
  std::size_t down_strip_bytes() const { return format.strip_bytes(intermediate_depth()); }
  std::size_t gate_up_bytes() const { return 2ul * gate_strips() * gate_strip_bytes(); }
  std::size_t down_bytes() const { return down_strips() * down_strip_bytes(); }
  std::size_t bias_bytes() const { return biases ? (2ul * gate_strips() + down_strips()) * line_bytes : 0; }
  std::size_t expert_bytes() const { return gate_up_bytes() + down_bytes() + bias_bytes(); }
};

}  // namespace ktbench
