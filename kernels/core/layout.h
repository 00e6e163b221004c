// The packed weight layout that every ISA reads, and the geometry of one MoE layer.
//
// A strip holds 16 output rows along all of k. Its body is a sequence of 64-byte lines, each with four bytes for every
// row: two bf16, four int8 or eight int4 neighbours along k. Sixteen lines of bf16 or int8 are both the B operand of an
// AMX tile multiplication and sixteen operands of the AVX-512 and AVX2 dot products. One token reads a single
// sequential stream. Gate strip i is followed by up strip i: SwiGLU is an epilogue of one task.
//
// By scales (core/formats.h):
//   none   [line...]
//   row    StripScales [line...]
//   group  StripScales {a line of int8 factors for 4 groups, [line...] x 4}...
//   block  StripOffsets {a line of half scales for 2 blocks, [line...] x 2}...
//
// A line of bf16 is [row][2 k], of int8 [row][4 k], of int4 [row][4 bytes] with k and k + 4 in a byte. Formats with
// block scales hold the numbers of GGUF's blocks of their names (ggml-common.h) in the order of lines.
//
// Everything is padded with zeros: k to Format::depth_multiple(), rows to whole strips. An expert: gate and up strips,
// down strips, and float32 biases if the layer has them: gate, up, down, a line for each strip.
#pragma once

#include <optional>

#include "core/formats.h"

namespace ktbench {

using bf16 = std::uint16_t;
using half = std::uint16_t;  // IEEE 754

inline constexpr int tile_lines = 16;
inline constexpr int tile_bytes = tile_lines * line_bytes;

struct Geometry {
  int experts;
  int hidden;
  int intermediate;
    Format format = {};  // of gate and up, and of down unless it has its own
  bool biases = false;
  std::optional<Format> own_down_format = {};

  bool operator==(const Geometry&) const = default;

  Format down_format() const { return own_down_format.value_or(format); }

  int gate_strips() const { return round_up(intermediate, 2 * strip_rows) / strip_rows; }
  int down_strips() const { return round_up(hidden, 2 * strip_rows) / strip_rows; }
  int hidden_depth() const { return format.padded_depth(hidden); }
  int intermediate_depth() const { return down_format().padded_depth(intermediate); }
  std::size_t gate_strip_bytes() const { return format.strip_bytes(hidden_depth()); }
  std::size_t down_strip_bytes() const { return down_format().strip_bytes(intermediate_depth()); }
  std::size_t gate_up_bytes() const { return 2ul * gate_strips() * gate_strip_bytes(); }
  std::size_t down_bytes() const { return down_strips() * down_strip_bytes(); }
  std::size_t bias_bytes() const { return biases ? (2ul * gate_strips() + down_strips()) * line_bytes : 0; }
  std::size_t expert_bytes() const { return gate_up_bytes() + down_bytes() + bias_bytes(); }
};

}  // namespace ktbench
