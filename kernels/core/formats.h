// The formats of packed weights, one row each. Everything that depends on the format follows from its row: the layout
// of a strip, which kernels multiply it, its name in Python (`_kernels.formats()`).
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>

namespace ktbench {

inline constexpr int strip_rows = 16;
inline constexpr int line_bytes = 64;

constexpr int round_up(int n, int multiple) { return (n + multiple - 1) / multiple * multiple; }

// The contents of a line: for each of 16 rows four bytes of neighbours along k: two bf16, four int8 or e4m3, or eight
// nibbles (int4, or codes for the values of a table, core/unpack.h).
enum class Numbers : std::uint8_t {
  bf16, int8, int4, iq4_nl, e2m1, e4m3,
  q2_k, q3_k, q4_k, q5_k, q6_k, iq4_xs, iq3_s, iq3_xxs, iq2, iq1, nvfp4, int4_zp  // codes of super-blocks
};

// The scales of a strip's integers.
enum class Scales : std::uint8_t {
  none,   // nothing: bf16
  row,    // StripScales, at the head of the strip
  group,  // the same, and an int8 factor for each group: records of a line of factors, then four groups
  block,  // a half for each group, StripOffsets at the head of the strip: records of a line of halves, then two groups
  block_bf16,  // the same in bf16
  power,  // 2^(a byte - 127) for each group (e8m0), StripOffsets: records of a line of bytes, then four groups
  tile,   // a float for each row at the head, and one for each group of all rows: records of a line of floats, then 16
  super,  // of super-blocks, StripOffsets: records of one super-block of each row (core/coded.h)
};

// Heads a strip of row or group scales: weight = row scale x int8, or row scale x group factor x int4.
struct StripScales {
  float scale[strip_rows];
  std::int32_t offset[strip_rows];  // -128 x the row's sum: the excess of a product with activations raised by 128
};

// Heads a strip of block scales: weight = block scale x integer.
struct StripOffsets {
  float offset[strip_rows];  // -128 x the row's sum of weights
};

// Heads a strip of tile scales: weight = row scale x group scale x number.
struct RowScales {
  float scale[strip_rows];
};

// Where the minima of groups are, if any: in separate lines, or in the upper halves of the scales' bytes. Zero points
// are minima in units of the scale.
enum class Minima : std::uint8_t { none, apart, beside, zeros };

// The scales of a group's values.
enum class GroupScale : std::uint8_t {
  integer,  // an int8 and the half d of the super-block
  e4m3,     // an e4m3 and the float of the super-block
  half      // a half
};

inline constexpr int super_depth = 256;  // of a super-block

struct Coded {
  int block_bytes;  // of a super-block in a file
  int group;
    bool four, two, one;  // planes of this many bits
  Minima minima = Minima::none;
    int raised = 0;      // code minus value
  bool table = false;  // codes are places in a table (core/coded.h)
  float unit = 1;      // of numbers
  GroupScale scale = GroupScale::integer;

  constexpr bool has_minima() const { return minima != Minima::none; }
  constexpr int byte_lines() const { return super_depth / group * strip_rows / line_bytes; }
  constexpr int head_lines() const { return scale == GroupScale::half ? 0 : 1; }
  constexpr int scale_lines() const { return byte_lines() * (scale == GroupScale::half ? 2 : 1); }
  constexpr int minima_lines() const { return minima == Minima::apart || minima == Minima::zeros ? byte_lines() : 0; }
  constexpr int planes_at() const { return (head_lines() + scale_lines() + minima_lines()) * line_bytes; }
  constexpr int bits() const { return 4 * four + 2 * two + one; }
  constexpr std::size_t record_bytes() const { return planes_at() + super_depth / 32ul * bits() * line_bytes; }
};

// The lattice values of GGUF's IQ formats have few magnitudes, and are stored as codes of these with signs: IQ1_S and
// IQ1_M (in eighths) and IQ2_XXS to IQ2_S in blocks of q3_k, IQ3_XXS and IQ3_S in blocks of iq4_xs. Always inlined,
// like every function below that calls it: otherwise the linker keeps one copy of an inline function for all callers,
// which may be compiled for an ISA that the CPU lacks (cmake/portable.cmake).
[[gnu::always_inline]] constexpr Coded coded(Numbers numbers) {
  constexpr bool yes = true, no = false;
  switch (numbers) {
    case Numbers::q2_k: return {84, 16, no, yes, no, Minima::beside};
    case Numbers::q3_k: return {110, 16, no, yes, yes, Minima::none, 4};
    case Numbers::q4_k: return {144, 32, yes, no, no, Minima::apart};
    case Numbers::q5_k: return {176, 32, yes, no, yes, Minima::apart};
    case Numbers::q6_k: return {210, 16, yes, yes, no, Minima::none, 32};
    case Numbers::iq3_s: return {136, 32, yes, no, no, Minima::none, 0, yes};
    case Numbers::iq3_xxs: return {136, 32, yes, no, no, Minima::none, 0, yes, 1.0f / 4};
    case Numbers::iq2: return {110, 16, no, yes, yes, Minima::none, 0, yes, 1.0f / 8};
    case Numbers::iq1: return {110, 16, no, yes, yes, Minima::none, 0, yes, 1.0f / 8};
    case Numbers::nvfp4: return {148, 16, yes, no, no, Minima::none, 0, yes, 1.0f / 2, GroupScale::e4m3};
    case Numbers::int4_zp: return {152, 32, yes, no, no, Minima::zeros, 0, no, 1, GroupScale::half};
    default: return {136, 32, yes, no, no, Minima::none, 0, yes};  // iq4_xs
  }
}

// Their values come from lattices, which quantising would have to search; only files have them.
constexpr bool is_lattice(Numbers numbers) { return numbers >= Numbers::iq3_s && numbers <= Numbers::iq1; }

inline constexpr int groups_per_record = 4;
inline constexpr int blocks_per_record = 2;
inline constexpr int tiles_per_record = 16;
inline constexpr int block_depth = 32;  // the group of GGUF's formats with block scales (ggml-common.h)
inline constexpr int tile_depth = 128;  // of e4m3: the columns of DeepSeek-V3's 128 x 128 tiles

// How values are stored. `group` is the number of k that share a scale, 0 if the whole row does or there is none.
struct Format {
  Numbers numbers = Numbers::bf16;
  Scales scales = Scales::none;
  int group = 0;

  constexpr bool operator==(const Format&) const = default;
  constexpr bool has_blocks() const { return scales >= Scales::block; }
  // Whether rows must be whole blocks. Tiles and super-blocks are padded with zeros.
  constexpr bool has_whole_blocks() const { return has_blocks() && scales != Scales::tile && !has_supers(); }
  constexpr bool has_supers() const { return scales == Scales::super; }
  // The number of k that share a minimum; 0 if there are none.
  [[gnu::always_inline]] constexpr int minima_group() const {
    return has_supers() && coded(numbers).has_minima() ? coded(numbers).group : 0;
  }
  [[gnu::always_inline]] constexpr int bits() const {
    if (has_supers()) return coded(numbers).bits();
    return numbers == Numbers::bf16 ? 16 : numbers == Numbers::int8 || numbers == Numbers::e4m3 ? 8 : 4;
  }
  [[gnu::always_inline]] constexpr int line_depth() const { return 32 / bits(); }
  // Of k: whole tiles, groups and records.
  constexpr int depth_multiple() const { return numbers == Numbers::bf16 ? 32 : group > 64 ? group : 64; }
  constexpr int padded_depth(int depth) const { return round_up(depth, depth_multiple()); }
  constexpr int head_bytes() const {
    static_assert(sizeof(RowScales) == sizeof(StripOffsets));
    return scales == Scales::none ? 0 : static_cast<int>(has_blocks() ? sizeof(StripOffsets) : sizeof(StripScales));
  }
  constexpr int groups(int depth) const { return group ? depth / group : 0; }
  [[gnu::always_inline]] constexpr int record_groups() const {
    return scales == Scales::tile ? tiles_per_record : scale_bytes() == 2 ? blocks_per_record : groups_per_record;
  }
  // Bytes of one group's scale, and of one block in a file: its scale, then its values.
  [[gnu::always_inline]] constexpr int scale_bytes() const {
    switch (scales) {
      case Scales::none:
      case Scales::row: return 0;
      case Scales::group:
      case Scales::power: return 1;
      case Scales::block:
      case Scales::block_bf16: return 2;
      case Scales::tile: return sizeof(float);
      case Scales::super: return coded(numbers).planes_at() / strip_rows;
    }
    return 0;
  }
  [[gnu::always_inline]] constexpr int block_bytes() const {
    return has_supers() ? coded(numbers).block_bytes : has_blocks() ? scale_bytes() + group * bits() / 8 : 0;
  }
  // Bytes before the record that begins with group `g`, for a format with groups.
  [[gnu::always_inline]] constexpr std::size_t bytes_before(int g) const {
    if (has_supers()) return g * coded(numbers).record_bytes();
    return static_cast<std::size_t>(g / record_groups() + g * group / line_depth()) * line_bytes;
  }
  // Bytes of a strip with padded k.
  [[gnu::always_inline]] constexpr std::size_t strip_bytes(int depth) const {
    if (has_supers()) return head_bytes() + bytes_before(depth / group);
    const std::size_t lines = depth / line_depth();
    const std::size_t scale_lines = (groups(depth) + record_groups() - 1) / record_groups();
    return head_bytes() + (lines + scale_lines) * line_bytes;
  }
  // The format of the same weights with int8 numbers: group factors multiplied in, block scales as they are, powers of
  // two in bf16. That of super-blocks is bf16.
  constexpr Format widened() const {
    if (has_supers()) return {};
    if (scales == Scales::power) return {Numbers::int8, Scales::block_bf16, group};
    return has_blocks() ? Format{Numbers::int8, scales, group} : Format{Numbers::int8, Scales::row, 0};
  }
};

inline constexpr Format fp8{Numbers::e4m3, Scales::tile, tile_depth};

struct FormatTraits {
  const char* name;
  Format format;
  int code;  // in files of packed experts, together with the group; never reused
};

inline constexpr FormatTraits format_table[] = {
    {"bf16", {Numbers::bf16, Scales::none, 0}, 0},
    {"int8", {Numbers::int8, Scales::row, 0}, 1},
    {"int4_g32", {Numbers::int4, Scales::group, 32}, 2},
    {"int4_g64", {Numbers::int4, Scales::group, 64}, 2},
    {"int4_g128", {Numbers::int4, Scales::group, 128}, 2},
    {"q8_0", {Numbers::int8, Scales::block, block_depth}, 3},
    {"q4_0", {Numbers::int4, Scales::block, block_depth}, 4},
    {"iq4_nl", {Numbers::iq4_nl, Scales::block, block_depth}, 5},
    {"mxfp4", {Numbers::e2m1, Scales::power, block_depth}, 6},
    {"int4_bf16", {Numbers::int4, Scales::block_bf16, block_depth}, 7},
    {"fp8", fp8, 8},
    {"q2_k", {Numbers::q2_k, Scales::super, super_depth}, 9},
    {"q3_k", {Numbers::q3_k, Scales::super, super_depth}, 10},
    {"q4_k", {Numbers::q4_k, Scales::super, super_depth}, 11},
    {"q5_k", {Numbers::q5_k, Scales::super, super_depth}, 12},
    {"q6_k", {Numbers::q6_k, Scales::super, super_depth}, 13},
    {"iq4_xs", {Numbers::iq4_xs, Scales::super, super_depth}, 14},
    {"iq3_s", {Numbers::iq3_s, Scales::super, super_depth}, 15},
    {"iq3_xxs", {Numbers::iq3_xxs, Scales::super, super_depth}, 16},
    {"iq2", {Numbers::iq2, Scales::super, super_depth}, 17},
    {"iq1", {Numbers::iq1, Scales::super, super_depth}, 18},
    {"nvfp4", {Numbers::nvfp4, Scales::super, super_depth}, 19},
    {"int4_zp", {Numbers::int4_zp, Scales::super, super_depth}, 20},
};
inline constexpr int format_count = static_cast<int>(std::size(format_table));

}  // namespace ktbench
