// The packed weight layout that every ISA reads, and the geometry of one MoE layer.
//
// A tile holds 16 output rows x 32 k as bf16, interleaved [k/2][row][2]: 1 KiB, at once the B operand of tdpbf16ps and
// sixteen 64-byte operands of vdpbf16ps. The tiles of one 16-row strip follow each other along k, so that one token
// reads a single sequential stream. Gate strip i is followed by up strip i: SwiGLU is an epilogue of one task. Both
// dimensions are padded with zeros to multiples of 32.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ktbench {

using bf16 = std::uint16_t;

inline constexpr int strip_rows = 16;
inline constexpr int tile_depth = 32;
inline constexpr int tile_elements = strip_rows * tile_depth;

constexpr int round_up(int n, int multiple) { return (n + multiple - 1) / multiple * multiple; }

struct Geometry {
  int experts;
  int hidden;
  int intermediate;

  int hidden_tiles() const { return round_up(hidden, tile_depth) / tile_depth; }
  int intermediate_tiles() const { return round_up(intermediate, tile_depth) / tile_depth; }
  int gate_strips() const { return 2 * intermediate_tiles(); }
  int down_strips() const { return 2 * hidden_tiles(); }

  std::size_t gate_up_elements() const { return 2ul * gate_strips() * hidden_tiles() * tile_elements; }
  std::size_t down_elements() const { return 1ul * down_strips() * intermediate_tiles() * tile_elements; }
  std::size_t expert_elements() const { return gate_up_elements() + down_elements(); }
};

}  // namespace ktbench
