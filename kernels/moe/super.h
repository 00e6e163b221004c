// A super-block of one row, between a file's blocks or a model's numbers and a strip.
#pragma once

#include "core/coded.h"
#include "core/layout.h"

namespace ktbench {

// Of any format: halves and bytes of scales as stored.
struct Super {
  half d = 0, dmin = 0;
    float whole = 0;  // the factor of e4m3 scales
  std::uint16_t scale[16] = {};
  std::uint8_t minimum[16] = {};
  std::uint8_t code[super_depth] = {};
};

// For a group's values in units of the format.
inline float scale_of(const Coded& of, const Super& block, int g) {
  switch (of.scale) {
    case GroupScale::integer:
      return float_of_half(block.d) * static_cast<float>(static_cast<std::int8_t>(block.scale[g]));
    case GroupScale::e4m3:
      return block.whole * widen(bf16_of_e4m3(static_cast<std::uint8_t>(block.scale[g])));
    case GroupScale::half: break;
  }
  return float_of_half(block.scale[g]);
}

// Quantises up to 256 values of a row, with zeros after them; each group's scale and minimum have the smallest squared
// error that a search finds. NaN if one of them is not finite. Not for lattice formats.
Super quantised_super(const Format& format, const bf16* x, int count);

}  // namespace ktbench
