// Products with transposed matrices: y W, where the forward product is x W^T. The weights are packed for the latter, so
// some rows and columns of W at a time are widened to float32, a panel, which is then multiplied with all rows of y.
#pragma once

#include "core/layout.h"

namespace ktbench {

inline constexpr int panel_rows = 128, panel_columns = 128;

// Whether kernels widen strips of a format; unpack_strip() handles the others.
constexpr bool widens(const Format& format) {
  return format.scales == Scales::none || format.scales == Scales::row || format.scales == Scales::group ||
         format.scales == Scales::tile;
}

// Columns [first, first + columns) of a strip, both multiples of 32, become rows [row, row + 16) of a panel. Meanwhile
// the same columns of the strip `ahead` bytes further on are prefetched.
struct WidenStrip {
  const std::byte* strip;
  Format format;
  int first, columns, row;
  std::ptrdiff_t ahead;
  float* panel;
};

// out[r] += y[row[r]] times the panel's first `depth` rows.
struct PanelProduct {
  const float* panel;
  int depth, columns;  // columns: a multiple of 32
  const float* y;
  std::size_t y_stride;
  const int* row;
  int count;
  float* out;
  std::size_t out_stride;
};

struct TransposedKernels {
  int slice;  // panels are [columns / slice][panel_rows][slice]
  void (*widen)(const WidenStrip&);
  void (*multiply)(const PanelProduct&);
};

extern const TransposedKernels transposed_reference;
extern const TransposedKernels transposed_avx2;
extern const TransposedKernels transposed_avx512;

}  // namespace ktbench
