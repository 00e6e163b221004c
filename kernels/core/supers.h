// Few rows against formats of super-blocks: a record becomes int8 lines in L1, which all rows are multiplied with. A policy
// P is one of core/gguf.h; in addition
//   fold_sum(x, minima, floats)  adds x times the minima
#pragma once

#include "core/coded.h"
#include "core/gguf.h"

namespace ktbench {
namespace {

template <class P, Numbers numbers, int rows, int strips>
[[gnu::flatten]] void stream_supers(const Rows& x, const Strips& w, float* c) {
  constexpr Coded of = coded(numbers);
  constexpr int per_row = strips * P::parts, groups = super_depth / of.group;
  typename P::Floats floats[rows * per_row];
  clear(floats);
  const std::byte* record = lines_of(w);
  RowPointers<rows> row(x.data, x.stride);
  const StreamPrefetch<strips> fetch(w);
  WideRecord wide[strips];
  for (int k = 0, group = 0; k < w.depth; k += super_depth, record += of.record_bytes()) {
    for (std::size_t i = 0; i < of.record_bytes(); i += line_bytes) fetch.ahead_of(record + i);
    for (int s = 0; s < strips; ++s) widen_record<numbers>(record + s * w.bytes, wide[s]);
    const std::byte* line = wide[0].lines;
    for (int g = 0; g < groups; ++g, ++group) {
      keep_in_registers(floats);
      typename P::Sum sums[rows * per_row];
      clear(sums);
#pragma GCC unroll 8
      for (int i = 0; i < of.group / 4; ++i, line += line_bytes, row.advance(P::step))
        EightBits<P>::template add<rows, strips>(sums, line, sizeof(WideRecord), row);
#pragma GCC unroll 4
      for (int i = 0; i < per_row; ++i) {
        const auto& here = wide[i / P::parts];
        const auto scale = P::get_floats(here.scale[g] + i % P::parts * part_rows<P>);
#pragma GCC unroll 12
        for (int r = 0; r < rows; ++r) {
          auto& to = floats[r * per_row + i];
          to = P::fold(sums[r * per_row + i], scale, to);
          if constexpr (of.has_minima())
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

}  // namespace
}  // namespace ktbench
