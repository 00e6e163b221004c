// Formats with block scales: the integer sums of a block's 32 k are scaled and added up as floats. A policy P is one of
// core/grouped.h; in addition
//   gguf_rows, keeps_floats  rows of a register block, and whether it keeps the floats in registers, too, or in L1
//   zero(sum)  in assembly, too: gcc 12 copies a register of zeros into every sum
//   halves_of(at), bf16_of(at), powers_of(at)  a part's scales as Floats
//   load_codes<quarter>(part, values)  an operand of nibbles that stand for the numbers of a table
//   fold(sums, scales, floats)
//   fold_into(sums, scales, kept)  the same in place, in assembly: gcc 12 converts all sums first, and spills
//   get_floats(c), put_floats(floats, c)
//   finish(floats, unit, part, offsets, row_scale, c)  what the sums stand for
#pragma once

#include "core/grouped.h"
#include "core/half.h"

namespace ktbench {
namespace {

// The layout of a record's scales.
struct Halves {
  static constexpr int bytes = sizeof(half), per_record = blocks_per_record, per_turn = per_record;
  template <class P>
  static auto read(const std::byte* at) { return P::halves_of(at); }
};
struct Bf16s {
  static constexpr int bytes = sizeof(bf16), per_record = blocks_per_record, per_turn = per_record;
  template <class P>
  static auto read(const std::byte* at) { return P::bf16_of(at); }
};
struct Powers {
  static constexpr int bytes = 1, per_record = groups_per_record;
  template <class P>
  static auto read(const std::byte* at) { return P::powers_of(at); }
};

// For part `i` of the strips side by side.
template <class P, class Scale>
inline auto scales_of_part(const std::byte* scales, int i, std::size_t strip_bytes) {
  return Scale::template read<P>(scales + i / P::parts * strip_bytes + i % P::parts * part_rows<P> * Scale::bytes);
}

inline const float* offsets_of(const Strips& w, int strip) {
  return reinterpret_cast<const StripOffsets*>(w.data + strip * w.bytes)->offset;
}

// Lines of int8, and of int4, as their sums come.
template <class P>
struct EightBits {
  using Scale = Halves;
  static constexpr int block_lines = block_depth / 4, step = P::step;
  static constexpr float unit = 1;
  template <int rows, int strips, int n>
  static void add(typename P::Sum (&sums)[n], const std::byte* line, std::size_t strip_bytes,
                  const RowPointers<rows>& row) {
    add_products<P, 0, rows, strips>(sums, line, strip_bytes, row);
    if constexpr (P::halves == 2) add_products<P, 1, rows, strips>(sums, line, strip_bytes, row);
  }
};

template <class P, class ScaleKind>
struct FourBits {
  using Scale = ScaleKind;
  static constexpr int block_lines = block_depth / 8, step = P::quarter_step;
  static constexpr float unit = P::unit;
  template <int rows, int strips, int n>
  static void add(typename P::Sum (&sums)[n], const std::byte* line, std::size_t strip_bytes,
                  const RowPointers<rows>& row) {
    add_int4_line<P, rows, strips, Int4>(sums, line, strip_bytes, row, std::make_integer_sequence<int, P::quarters>{});
  }
};

// Lines of nibbles that stand for the values of a table, which are `times` too large.
template <class P, class ScaleKind, const std::int8_t* values, int times>
struct Codes {
  using Scale = ScaleKind;
  static constexpr int block_lines = block_depth / 8, step = P::quarter_step;
  static constexpr float unit = times;
  template <class, int quarter>
  static auto load(const std::byte* at) { return P::template load_codes<quarter>(at, values); }
  template <int rows, int strips, int n>
  static void add(typename P::Sum (&sums)[n], const std::byte* line, std::size_t strip_bytes,
                  const RowPointers<rows>& row) {
    add_int4_line<P, rows, strips, Codes>(sums, line, strip_bytes, row, std::make_integer_sequence<int, P::quarters>{});
  }
};
template <class P>
using Iq4Nl = Codes<P, Halves, iq4_nl_values, 1>;
template <class P>
using E2m1 = Codes<P, Powers, e2m1_values, 2>;

template <class P, class Lines, int rows, int strips, bool fetching>
void stream_gguf(const Rows& x, const Strips& w, float* c) {
  using Scale = typename Lines::Scale;
  constexpr int per_row = strips * P::parts, per_record = Scale::per_record;
  typename P::Floats floats[rows * per_row];
  clear(floats);
  const std::byte* at = lines_of(w);
  RowPointers<rows> row(x.data, x.stride);
  [[maybe_unused]] const StreamPrefetch<strips> fetch(w);
  for (int blocks = w.depth / block_depth; blocks > 0; blocks -= per_record) {
    const std::byte* scales = at;
    if constexpr (fetching) fetch.ahead_of(at);
    at += line_bytes;
    keep_in_registers(floats);
    const int here = per_record == blocks_per_record ? per_record : smaller(blocks, per_record);
    for (int b = 0; b < here; ++b, scales += strip_rows * Scale::bytes) {
      typename P::Sum sums[rows * per_row];
      clear(sums);
#pragma GCC unroll 2
      for (int i = 0; i < Lines::block_lines; ++i, at += line_bytes, row.advance(Lines::step)) {
        if constexpr (fetching) fetch.ahead_of(at);
        Lines::template add<rows, strips>(sums, at, w.bytes, row);
      }
#pragma GCC unroll 4
      for (int i = 0; i < per_row; ++i) {
        const auto scale = scales_of_part<P, Scale>(scales, i, w.bytes);
#pragma GCC unroll 12
        for (int r = 0; r < rows; ++r)
          floats[r * per_row + i] = P::fold(sums[r * per_row + i], scale, floats[r * per_row + i]);
      }
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 4
    for (int i = 0; i < per_row; ++i)
      P::finish(floats[r * per_row + i], Lines::unit, i % P::parts, offsets_of(w, i / P::parts), row_scale(x, r),
                c + r * c_stride + i * part_rows<P>);
}

// The position of the floats of a register block's sum `i`.
template <class P, int strips, int c_stride>
inline float* place(float* c, int i) {
  constexpr int per_row = strips * P::parts;
  return c + i / per_row * c_stride + i % per_row * part_rows<P>;
}

// Adds the sums of a block, scaled, to the floats, wherever P keeps them.
template <class P, class Scale, int strips, int c_stride, int n>
inline void add_scaled(const typename P::Sum (&sums)[n], const std::byte* scales, std::size_t strip_bytes,
                       typename P::Floats (&floats)[n], float* c) {
  constexpr int per_row = strips * P::parts;
  asm("" : "+r"(c));  // or gcc keeps a pointer to each place in memory
#pragma GCC unroll 8
  for (int i = 0; i < per_row; ++i) {
    const auto scale = scales_of_part<P, Scale>(scales, i, strip_bytes);
#pragma GCC unroll 24
    for (int s = i; s < n; s += per_row) {
      if constexpr (P::keeps_floats)
        P::fold_into(sums[s], scale, floats[s]);
      else
        P::fold_into(sums[s], scale, place<P, strips, c_stride>(c, s));
    }
  }
}

// A register block over turns of int8 lines behind their scales, like core/lines.h's block() over lines; c holds floats.
template <class P, class Scale, int rows, int strips, int c_stride>
void block_gguf(const Panel& w, const std::byte* x, std::size_t stride, Prefetch& ahead, bool begins, float* c) {
  constexpr int n = rows * strips * P::parts;
  if (begins)
    for (int i = 0; i < n; ++i) P::put_floats(typename P::Floats{}, place<P, strips, c_stride>(c, i));
  typename P::Floats floats[n];
#pragma GCC unroll 32
  for (int i = 0; P::keeps_floats && i < n; ++i) floats[i] = P::get_floats(place<P, strips, c_stride>(c, i));
  const std::byte* line = w.lines;
  Prefetch following = ahead;
  RowPointers<rows> row(x, stride);
  for (int i = 0; i < w.count; i += turn_lines) {
#pragma GCC unroll 6
    for (int r = 0; r < rows; ++r) __builtin_prefetch(row[r] + rows * stride, 0, 3);  // of the block that follows
    const std::byte* scales = line;
    line += Scale::per_turn * strip_rows * Scale::bytes;
    for (int b = 0; b < Scale::per_turn; ++b, scales += strip_rows * Scale::bytes) {
      typename P::Sum sums[n];
#pragma GCC unroll 32
      for (int s = 0; s < n; ++s) P::zero(sums[s]);
#pragma GCC unroll 8
      for (int l = 0; l < turn_lines / Scale::per_turn; ++l, line += line_bytes, row.advance(P::step)) {
        if (l % fetch_lines == 0) following.fetch_part((b * turn_lines / Scale::per_turn + l) / fetch_lines);
        EightBits<P>::template add<rows, strips>(sums, line, w.strip_bytes, row);
      }
      add_scaled<P, Scale, strips, c_stride>(sums, scales, w.strip_bytes, floats, c);
    }
  }
  ahead = following;
#pragma GCC unroll 32
  for (int i = 0; P::keeps_floats && i < n; ++i) P::put_floats(floats[i], place<P, strips, c_stride>(c, i));
}

// For BlockKernel of core/blocks.h: strips of int8 blocks as they are.
template <class Scale>
struct BlockPanels {
  static constexpr int piece_lines = 128;
  static constexpr std::size_t piece_bytes = piece_lines / turn_lines * (turn_lines + 1) * line_bytes;

  static Panel panel(const Strips& w, int first, int count, std::byte*) {
    return {lines_of(w) + w.format.bytes_before(first * 4 / block_depth), w.bytes, count};
  }
  template <class P>
  static constexpr int rows = P::gguf_rows;
  template <class P, int rows, int strips, int c_stride>
  static constexpr auto block = block_gguf<P, Scale, rows, strips, c_stride>;
  template <class P>
  static void after(const Panel&, const Rows&, int, int, float*, int) {}
  template <class P>
  static void finish(const Strips& w, int i, float row_scale, float* c) {
    P::finish(P::get_floats(c), 1, i % P::parts, offsets_of(w, i / P::parts), row_scale, c);
  }
};

// Blocks of nibbles unpacked to int8.
template <class Scale>
struct UnpackedBlockPanels : BlockPanels<Scale> {
  using BlockPanels<Scale>::piece_bytes;
  static Panel panel(const Strips& w, int first, int count, std::byte* to) {
    for (int s = 0; s < w.count; ++s)
      unpack_blocks(w.format, lines_of(w) + s * w.bytes + w.format.bytes_before(first * 4 / block_depth),
                    count * 4 / block_depth, to + s * piece_bytes);
    return {to, piece_bytes, count};
  }
};

}  // namespace
}  // namespace ktbench
