// Few rows against int4: the integer sums of a group are scaled and added up as floats. A policy P is one of
// core/lines.h; in addition
//   quarters, quarter_step   operands per line of int4, and bytes of an activation row per line
//   load_int4<quarter>(part)  an operand, `unit` times too large
//   broadcast_int4<quarter>(row)
//   Floats, scale(sums, group scales, floats), store_floats(floats, unit, part, scales, row_scale, c)
#pragma once

#include <utility>

#include "core/lines.h"
#include "core/unpack.h"

namespace ktbench {
namespace {

// How a nibble becomes an operand: as two's complement.
struct Int4 {
  template <class P, int quarter>
  static auto load(const std::byte* at) { return P::template load_int4<quarter>(at); }
};

template <class P, int quarter, int rows, int strips, class Nibbles, int n>
inline void add_int4_products(typename P::Sum (&sums)[n], const std::byte* line, std::size_t strip_bytes,
                              const RowPointers<rows>& row) {
  typename P::Vector operand[strips * P::parts];
#pragma GCC unroll 4
  for (int i = 0; i < strips * P::parts; ++i)
    operand[i] = Nibbles::template load<P, quarter>(line + i / P::parts * strip_bytes + i % P::parts * part_bytes<P>);
#pragma GCC unroll 12
  for (int r = 0; r < rows; ++r) {
    const auto a = P::template broadcast_int4<quarter>(row[r]);
#pragma GCC unroll 4
    for (int i = 0; i < strips * P::parts; ++i) P::add(sums[r * strips * P::parts + i], a, operand[i]);
  }
  keep_in_registers(sums);
}

template <class P, int rows, int strips, class Nibbles, int n, int... quarter>
inline void add_int4_line(typename P::Sum (&sums)[n], const std::byte* line, std::size_t strip_bytes,
                          const RowPointers<rows>& row, std::integer_sequence<int, quarter...>) {
  (add_int4_products<P, quarter, rows, strips, Nibbles>(sums, line, strip_bytes, row), ...);
}

template <class P, int rows, int strips, bool fetching>
void stream_int4(const Rows& x, const Strips& w, float* c) {
  constexpr int per_row = strips * P::parts;
  typename P::Floats floats[rows * per_row];
  clear(floats);
  const int group_lines = w.format.group / 8;
  const std::byte* at = lines_of(w);
  RowPointers<rows> row(x.data, x.stride);
  [[maybe_unused]] const StreamPrefetch<strips> fetch(w);
  for (int groups = w.format.groups(w.depth); groups > 0; groups -= groups_per_record) {
    const std::int8_t* scales = record_scales(at);
    at += line_bytes;
    keep_in_registers(floats);
    for (int g = smaller(groups, groups_per_record); g > 0; --g, scales += strip_rows) {
      typename P::Sum sums[rows * per_row];
      clear(sums);
      for (int i = group_lines; i > 0; --i, at += line_bytes, row.advance(P::quarter_step)) {
        if constexpr (fetching) fetch.ahead_of(at);
        add_int4_line<P, rows, strips, Int4>(sums, at, w.bytes, row, std::make_integer_sequence<int, P::quarters>{});
      }
#pragma GCC unroll 12
      for (int r = 0; r < rows; ++r)
#pragma GCC unroll 4
        for (int i = 0; i < per_row; ++i)
          floats[r * per_row + i] = P::scale(
              sums[r * per_row + i], scales + i / P::parts * w.bytes + i % P::parts * part_rows<P>, floats[r * per_row + i]);
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 4
    for (int i = 0; i < per_row; ++i)
      P::store_floats(floats[r * per_row + i], P::unit, i % P::parts, scales_of(w, i / P::parts), row_scale(x, r),
                      c + r * c_stride + i * part_rows<P>);
}

}  // namespace
}  // namespace ktbench
