// Super-block formats: records become int8 lines in L1, with which all rows are multiplied, few rows while the weights
// stream, many in register blocks. A policy P is one of core/gguf.h; in addition
//   fold_sum(x, minima, floats)  adds x times the minima
#pragma once

#include "core/coded.h"
#include "core/gguf.h"

namespace ktbench {
namespace {

template <class P, int of_group, bool minima, int rows, int strips>
[[gnu::flatten]] void stream_supers(const Rows& x, const Strips& w, float* c) {
  using Wide = WideRecord<of_group>;
  constexpr int per_row = strips * P::parts;
  const Widen<of_group> widen = widening<of_group>(w.format.numbers);
  const std::size_t record_bytes = w.format.bytes_before(1);
  typename P::Floats floats[rows * per_row];
  clear(floats);
  const std::byte* record = lines_of(w);
  RowPointers<rows> row(x.data, x.stride);
  const StreamPrefetch<strips> fetch(w);
  Wide wide[strips];
  for (int k = 0, group = 0; k < w.depth; k += super_depth, record += record_bytes) {
    for (std::size_t i = 0; i < record_bytes; i += line_bytes) fetch.ahead_of(record + i);
    for (int s = 0; s < strips; ++s) widen(record + s * w.bytes, wide[s]);
    for (int g = 0; g < Wide::groups; ++g, ++group) {
      const std::byte* line = wide[0].lines(g);
      keep_in_registers(floats);
      typename P::Sum sums[rows * per_row];
      clear(sums);
#pragma GCC unroll 8
      for (int i = 0; i < Wide::group_lines; ++i, line += line_bytes, row.advance(P::step))
        EightBits<P>::template add<rows, strips>(sums, line, sizeof(Wide), row);
#pragma GCC unroll 4
      for (int i = 0; i < per_row; ++i) {
        Wide& here = wide[i / P::parts];
        const auto scale = P::get_floats(here.scale(g) + i % P::parts * part_rows<P>);
#pragma GCC unroll 12
        for (int r = 0; r < rows; ++r) {
          auto& to = floats[r * per_row + i];
          to = P::fold(sums[r * per_row + i], scale, to);
          if constexpr (minima)
            to = P::fold_sum(group_sums(x, r)[group], P::get_floats(here.minimum[g] + i % P::parts * part_rows<P>), to);
        }
      }
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 4
    for (int i = 0; i < per_row; ++i)
      P::finish(floats[r * per_row + i], 1, i % P::parts, offsets_of(w, i / P::parts), row_scale(x, r),
                c + r * c_stride + i * part_rows<P>);
}

// The scales of an iteration of 16 lines, in front of it.
template <int group>
struct Singles {
  static constexpr int bytes = sizeof(float), per_turn = tile_lines * 4 / group;
  template <class P>
  static auto read(const std::byte* at) { return P::get_floats(reinterpret_cast<const float*>(at)); }
};

// For BlockKernel of core/blocks.h: one record of each strip at a time.
template <int group, bool minima>
struct SuperPanels {
  using Wide = WideRecord<group>;
  static constexpr int piece_lines = super_depth / 4;

  static Panel panel(const Strips& w, int first, int count, std::byte* to) {
    for (int s = 0; s < w.count; ++s)
      widening<group>(w.format.numbers)(lines_of(w) + s * w.bytes + w.format.bytes_before(first / piece_lines),
                                        *reinterpret_cast<Wide*>(to + s * sizeof(Wide)));
    return {to, sizeof(Wide), count};
  }
  template <class P>
  static constexpr int rows = P::gguf_rows;
  template <class P, int rows, int strips, int c_stride>
  static constexpr auto block = block_gguf<P, Singles<group>, rows, strips, c_stride>;

  // The minima of a panel, times the sums of the rows' activations.
  template <class P>
  static void after(const Panel& panel, const Rows& x, int strip_count, int first, float* c, int stride) {
    if constexpr (minima)
      for (int s = 0; s < strip_count; ++s) {
        const auto& wide = *reinterpret_cast<const Wide*>(panel.lines + s * panel.strip_bytes);
        for (int part = 0; part < P::parts; ++part)
          for (int r = 0; r < x.count; ++r) {
            float* at = c + r * stride + s * strip_rows + part * part_rows<P>;
            const float* sums = group_sums(x, r) + first * 4 / group;
            typename P::Floats floats = P::get_floats(at);
#pragma GCC unroll 16
            for (int g = 0; g < Wide::groups; ++g)
              floats = P::fold_sum(sums[g], P::get_floats(wide.minimum[g] + part * part_rows<P>), floats);
            P::put_floats(floats, at);
          }
      }
  }
  template <class P>
  static void finish(const Strips& w, int i, float row_scale, float* c) {
    P::finish(P::get_floats(c), 1, i % P::parts, offsets_of(w, i / P::parts), row_scale, c);
  }
};

}  // namespace
}  // namespace ktbench
