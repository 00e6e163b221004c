#include "moe/coded.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "core/activations.h"
#include "core/format_names.h"
#include "moe/super.h"

namespace ktbench {
namespace {

using Byte = std::uint8_t;

Byte bits(Byte byte, int from, int count) { return static_cast<Byte>(byte >> from & ((1 << count) - 1)); }

half half_at(const Byte* from) {
  half of;
  std::memcpy(&of, from, sizeof of);
  return of;
}

// Two bits of 32 bytes at a time: k, k + 32, k + 64, k + 96.
void take_twos(const Byte* from, int place, Byte* code) {
  for (int k = 0; k < super_depth; ++k)
    code[k] |= static_cast<Byte>(bits(from[k / 128 * 32 + k % 32], k % 128 / 32 * 2, 2) << place);
}

// Four bits of 32 bytes at a time: k, k + 32.
void take_fours(const Byte* from, Byte* code) {
  for (int k = 0; k < super_depth; ++k) code[k] = bits(from[k / 64 * 32 + k % 32], k % 64 / 32 * 4, 4);
}

// One bit of 32 bytes: k, k + 32, ...
void take_ones(const Byte* from, int place, Byte* code) {
  for (int k = 0; k < super_depth; ++k) code[k] |= static_cast<Byte>(bits(from[k % 32], k / 32, 1) << place);
}

Super q2_k(const Byte* from) {
  Super to;
  for (int g = 0; g < 16; ++g) to.scale[g] = bits(from[g], 0, 4), to.minimum[g] = from[g] >> 4;
  take_twos(from + 16, 0, to.code);
  to.d = half_at(from + 80), to.dmin = half_at(from + 82);
  return to;
}

Super q3_k(const Byte* from) {
  Super to;
  take_twos(from + 32, 0, to.code);
  take_ones(from, 2, to.code);
  const Byte* scales = from + 96;
  for (int g = 0; g < 16; ++g) {
    const int low = bits(scales[g % 8], g / 8 * 4, 4), high = bits(scales[8 + g % 4], g / 4 * 2, 2);
    to.scale[g] = static_cast<Byte>((low | high << 4) - 32);
  }
  to.d = half_at(from + 108);
  return to;
}

// Eight scales and minima of six bits in twelve bytes.
void take_sixes(const Byte* from, Super& to) {
  for (int g = 0; g < 4; ++g) {
    const Byte scale = from[g], minimum = from[g + 4], both = from[g + 8];
    to.scale[g] = bits(scale, 0, 6), to.minimum[g] = bits(minimum, 0, 6);
    to.scale[g + 4] = static_cast<Byte>(bits(both, 0, 4) | bits(scale, 6, 2) << 4);
    to.minimum[g + 4] = static_cast<Byte>(bits(both, 4, 4) | bits(minimum, 6, 2) << 4);
  }
}

Super q4_k(const Byte* from) {
  Super to;
  to.d = half_at(from), to.dmin = half_at(from + 2);
  take_sixes(from + 4, to);
  take_fours(from + 16, to.code);
  return to;
}

Super q5_k(const Byte* from) {
  Super to;
  to.d = half_at(from), to.dmin = half_at(from + 2);
  take_sixes(from + 4, to);
  take_fours(from + 48, to.code);
  take_ones(from + 16, 4, to.code);
  return to;
}

Super q6_k(const Byte* from) {
  Super to;
  for (int k = 0; k < super_depth; ++k) to.code[k] = bits(from[k / 128 * 64 + k % 64], k % 128 / 64 * 4, 4);
  take_twos(from + 128, 4, to.code);
  std::copy_n(from + 192, 16, to.scale);
  to.d = half_at(from + 208);
  return to;
}

Super iq4_xs(const Byte* from) {
  Super to;
  to.d = half_at(from);
  const std::uint16_t high = half_at(from + 2);
  for (int g = 0; g < 8; ++g) {
    const int low = bits(from[4 + g / 2], g % 2 * 4, 4);
    to.scale[g] = static_cast<Byte>((low | (high >> 2 * g & 3) << 4) - 32);
  }
  for (int k = 0; k < super_depth; ++k) to.code[k] = bits(from[8 + k / 32 * 16 + k % 16], k % 32 / 16 * 4, 4);
  return to;
}

// The first half of a group is in the low nibbles.
void take_nibbles(const Byte* from, int count, Byte* code) {
  for (int k = 0; k < count; ++k) code[k] = bits(from[k % (count / 2)], k / (count / 2) * 4, 4);
}

Super nvfp4(const Byte* from) {
  Super to;
  std::memcpy(&to.whole, from, sizeof to.whole);
  std::copy_n(from + 4, 16, to.scale);
  for (int g = 0; g < 16; ++g) take_nibbles(from + 20 + 8 * g, 16, to.code + 16 * g);
  return to;
}

Super int4_zp(const Byte* from) {
  Super to;
  for (int g = 0; g < 8; ++g, from += 19) {
    to.scale[g] = half_at(from), to.minimum[g] = from[2];
    take_nibbles(from + 3, 32, to.code + 32 * g);
  }
  return to;
}

Super super_in(Numbers numbers, const std::byte* block) {
  const auto* from = reinterpret_cast<const Byte*>(block);
  switch (numbers) {
    case Numbers::q2_k: return q2_k(from);
    case Numbers::q3_k:
    case Numbers::iq2:
    case Numbers::iq1: return q3_k(from);
    case Numbers::q4_k: return q4_k(from);
    case Numbers::q5_k: return q5_k(from);
    case Numbers::q6_k: return q6_k(from);
    case Numbers::nvfp4: return nvfp4(from);
    case Numbers::int4_zp: return int4_zp(from);
    default: return iq4_xs(from);
  }
}

int number(const Format& format, Byte code) {
  const Coded of = coded(format.numbers);
  return of.table ? coded_values(format.numbers)[code] : code - of.raised;
}

// A record of a strip, and the places of a row's parts in it.
class Record {
 public:
  Record(const Coded& of, std::byte* at) : of_(of), at_(reinterpret_cast<Byte*>(at)) {}

  void put(int row, const Super& from) {
    if (of_.scale == GroupScale::integer) {
      std::memcpy(at_ + row * sizeof(half), &from.d, sizeof(half));
      std::memcpy(at_ + line_bytes / 2 + row * sizeof(half), &from.dmin, sizeof(half));
    } else if (of_.scale == GroupScale::e4m3) {
      std::memcpy(at_ + row * sizeof(float), &from.whole, sizeof(float));
    }
    for (int g = 0; g < super_depth / of_.group; ++g) {
      const int place = g * strip_rows + row;
      if (of_.scale == GroupScale::half)
        std::memcpy(scales() + place * sizeof(half), &from.scale[g], sizeof(half));
      else
        scales()[place] = static_cast<Byte>(from.scale[g] | (of_.minima == Minima::beside ? from.minimum[g] << 4 : 0));
      if (of_.minima_lines()) minima()[place] = from.minimum[g];
    }
    for (int k = 0; k < super_depth; ++k) put_code(row, k, from.code[k]);
  }

  Super take(int row) const {
    Super to;
    if (of_.scale == GroupScale::integer)
      to.d = half_at(at_ + row * sizeof(half)), to.dmin = half_at(at_ + line_bytes / 2 + row * sizeof(half));
    else if (of_.scale == GroupScale::e4m3)
      std::memcpy(&to.whole, at_ + row * sizeof(float), sizeof(float));
    for (int g = 0; g < super_depth / of_.group; ++g) {
      const int place = g * strip_rows + row;
      to.scale[g] = of_.scale == GroupScale::half ? half_at(scales() + place * sizeof(half)) : scales()[place];
      if (of_.minima_lines()) to.minimum[g] = minima()[place];
      if (of_.minima == Minima::beside) to.minimum[g] = bits(scales()[place], 4, 4), to.scale[g] = bits(scales()[place], 0, 4);
    }
    for (int k = 0; k < super_depth; ++k) to.code[k] = code(row, k);
    return to;
  }

 private:
  Byte* scales() const { return at_ + of_.head_lines() * line_bytes; }
  Byte* minima() const { return scales() + of_.scale_lines() * line_bytes; }
  Byte* planes() const { return at_ + of_.planes_at(); }

  // Calls visit(byte, its bit of the plane, how many bits, their place in a code) for each plane.
  template <class Visit>
  void for_planes(int row, int k, Visit visit) const {
    Byte* plane = planes();
    int place = 0;
    for (const auto& [has, wide] : {std::pair{of_.four, 4}, std::pair{of_.two, 2}, std::pair{of_.one, 1}}) {
      if (!has) continue;
      const int per_line = 32 / wide, within = k % per_line;  // of k
      visit(plane[k / per_line * line_bytes + row * 4 + within % 4], within / 4 * wide, wide, place);
      plane += super_depth / per_line * line_bytes, place += wide;
    }
  }
  void put_code(int row, int k, Byte code) {
    for_planes(row, k, [&](Byte& byte, int bit, int wide, int place) {
      byte = static_cast<Byte>(byte | bits(code, place, wide) << bit);
    });
  }
  Byte code(int row, int k) const {
    int code = 0;
    for_planes(row, k, [&](const Byte& byte, int bit, int wide, int place) { code |= bits(byte, bit, wide) << place; });
    return static_cast<Byte>(code);
  }

  const Coded& of_;
  Byte* at_;
};

// -128 times the weights without their minima.
double raised_sum(const Format& format, const Super& block) {
  const Coded of = coded(format.numbers);
  double sum = 0;
  for (int k = 0; k < super_depth; ++k)
    sum += double{scale_of(of, block, k / of.group) * of.unit} * number(format, block.code[k]);
  return -128 * sum;
}

// `super_at(row, k)` makes the super-blocks.
template <class SuperAt>
void pack(int rows, int depth, const Format& format, std::byte* strip, SuperAt super_at) {
  const Coded of = coded(format.numbers);
  std::memset(strip, 0, format.strip_bytes(format.padded_depth(depth)));
  auto* offsets = reinterpret_cast<StripOffsets*>(strip);
  for (int r = 0; r < rows && r < strip_rows; ++r) {
    double sum = 0;
    for (int k = 0; k < depth; k += super_depth) {
      const Super block = super_at(r, k);
      Record(of, strip + format.head_bytes() + format.bytes_before(k / super_depth)).put(r, block);
      sum += raised_sum(format, block);
    }
    offsets->offset[r] = static_cast<float>(sum);
  }
}

void leave_zeros(const MatrixView& from, int rows, int depth, const Format& format, std::byte* strip) {
  for (int r = 0; r < rows && r < strip_rows; ++r)
    if (largest_magnitude(from.at(r, 0).data, depth) != 0)
      throw std::invalid_argument(std::string(traits_of(format).name) +
                                  ": numbers are not quantised to it here, it takes the blocks of a file");
  std::memset(strip, 0, format.strip_bytes(format.padded_depth(depth)));
}

}  // namespace

void pack_supers(const MatrixView& from, int rows, int depth, const Format& format, std::byte* strip) {
  if (is_lattice(format.numbers)) return leave_zeros(from, rows, depth, format, strip);
  pack(rows, depth, format, strip, [&](int r, int k) {
    return quantised_super(format, from.at(r, k).data, std::min(super_depth, depth - k));
  });
}

void pack_supers(const BlockView& from, int rows, int depth, const Format& format, std::byte* strip) {
  pack(rows, depth, format, strip, [&](int r, int k) { return super_in(format.numbers, from.at(r, k).data); });
}

void unpack_supers(const std::byte* strip, int rows, int depth, const Format& format, float* to, std::size_t stride) {
  const Coded of = coded(format.numbers);
  for (int r = 0; r < rows && r < strip_rows; ++r)
    for (int first = 0; first < depth; first += super_depth) {
      const std::byte* record = strip + format.head_bytes() + format.bytes_before(first / super_depth);
      const Super block = Record(of, const_cast<std::byte*>(record)).take(r);
      const float dmin = float_of_half(block.dmin);
      for (int k = 0; k < std::min(super_depth, depth - first); ++k) {
        const int g = k / of.group, code = number(format, block.code[k]);
        const int shifted = of.minima == Minima::zeros ? code - block.minimum[g] : code;
        const float weight = scale_of(of, block, g) * (of.unit * static_cast<float>(shifted));
        const bool subtracts = of.minima == Minima::apart || of.minima == Minima::beside;
        to[r * stride + first + k] = subtracts ? weight - dmin * static_cast<float>(block.minimum[g]) : weight;
      }
    }
}

}  // namespace ktbench
