// Few rows against e4m3 with tile scales: sums of bf16 or float32 products of a group's 128 k are scaled and added up. A
// policy P is one of core/lines.h whose activations are bf16 or float32; in addition
//   Codes, codes(part)    a part of a line of codes
//   of_pairs<half>(pairs) an operand out of pairs of bf16
//   fold(sum, scale, floats), times(floats, scales)
#pragma once

#include "core/lines.h"
#include "core/wide.h"

namespace ktbench {
namespace {

template <class P, int split, int rows, int strips, int n>
inline void add_e4m3_line(typename P::Sum (&sums)[n], const std::byte* line, std::size_t strip_bytes,
                          const RowPointers<rows>& row) {
  constexpr int per_row = strips * P::parts, per_line = 2 * P::halves;
  const auto pass = [&]<int step>() __attribute__((always_inline)) {
    typename P::Vector operand[per_row];
#pragma GCC unroll 4
    for (int i = 0; i < per_row; ++i) {
      typename P::Codes pairs[2];
      e4m3_pairs(P::codes(line + i / P::parts * strip_bytes + i % P::parts * part_bytes<P>), pairs);
      operand[i] = P::template of_pairs<step % P::halves>(pairs[step / P::halves]);
    }
#pragma GCC unroll 12
    for (int r = 0; r < rows; ++r) {
      const auto a = P::template broadcast<step % P::halves>(row[r] + step / P::halves * P::step);
#pragma GCC unroll 4
      for (int i = 0; i < per_row; ++i) P::add(sums[step % split * rows * per_row + r * per_row + i], a, operand[i]);
    }
  };
  [&]<int... step>(std::integer_sequence<int, step...>) __attribute__((always_inline)) {
    (pass.template operator()<step>(), ...);
  }(std::make_integer_sequence<int, per_line>{});
  keep_in_registers(sums);
}

inline const RowScales* row_scales_of(const Strips& w, int strip) {
  return reinterpret_cast<const RowScales*>(w.data + strip * w.bytes);
}

template <class P, int rows, int strips, int split, bool fetching>
[[gnu::flatten]] void stream_tiles(const Rows& x, const Strips& w, float* c) {
  constexpr int per_row = strips * P::parts, apart = rows * per_row, group_lines = tile_depth / 4;
  typename P::Sum floats[apart];
  clear(floats);
  const std::byte* at = lines_of(w);
  RowPointers<rows> row(x.data, x.stride);
  [[maybe_unused]] const StreamPrefetch<strips> fetch(w);
  for (int groups = w.depth / tile_depth; groups > 0; groups -= tiles_per_record) {
    const std::byte* scales = at;
    at += line_bytes;
    for (int g = smaller(groups, tiles_per_record); g > 0; --g, scales += sizeof(float)) {
      typename P::Sum sums[split * apart];
      clear(sums);
#pragma GCC unroll 2
      for (int i = 0; i < group_lines; ++i, at += line_bytes, row.advance(2 * P::step)) {
        if constexpr (fetching) fetch.ahead_of(at);
        add_e4m3_line<P, split, rows, strips>(sums, at, w.bytes, row);
      }
#pragma GCC unroll 24
      for (int i = 0; i < apart; ++i) {
        typename P::Sum sum = sums[i];
        for (int s = 1; s < split; ++s) sum = P::sum(sum, sums[s * apart + i]);
        floats[i] = P::fold(sum, *reinterpret_cast<const float*>(scales + i % per_row / P::parts * w.bytes), floats[i]);
      }
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 4
    for (int i = 0; i < per_row; ++i)
      P::put(P::times(floats[r * per_row + i], row_scales_of(w, i / P::parts)->scale + i % P::parts * part_rows<P>),
             c + r * c_stride + i * part_rows<P>);
}

}  // namespace
}  // namespace ktbench
