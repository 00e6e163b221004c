// Compiled for any x86-64, AVX2 and AVX-512.
#include "training/transposed.h"

#include "core/lines.h"
#include "core/unpack.h"
#include "core/wide.h"
#include "dense/vectors.h"

namespace ktbench {
namespace {

constexpr int slice = 2 * lanes;
constexpr int unit = 32;  // columns that are widened at once
constexpr int most_rows = lanes == 16 ? 8 : lanes == 8 ? 6 : 4;  // of a block, so that its sums fit the registers

// Columns `column` to `column` + 7 of row `row`.
inline float* in_panel(float* panel, int row, int column) {
  return panel + column / slice * panel_rows * slice + row * slice + column % slice;
}

#ifdef __AVX2__

// Eight rows of eight lines, four bytes of each, become eight vectors of a row's 32 bytes.
inline void transpose_lines(const std::byte* lines, __m256i (&row)[8]) {
  __m256i line[8], pairs[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) line[i] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(lines + i * line_bytes));
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2) {
    pairs[i] = _mm256_unpacklo_epi32(line[i], line[i + 1]);
    pairs[i + 1] = _mm256_unpackhi_epi32(line[i], line[i + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4)
#pragma GCC unroll 2
    for (int j = 0; j < 2; ++j) {
      line[i + 2 * j] = _mm256_unpacklo_epi64(pairs[i + j], pairs[i + j + 2]);
      line[i + 2 * j + 1] = _mm256_unpackhi_epi64(pairs[i + j], pairs[i + j + 2]);
    }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    row[i] = _mm256_permute2x128_si256(line[i], line[i + 4], 0x20);
    row[i + 4] = _mm256_permute2x128_si256(line[i], line[i + 4], 0x31);
  }
}

// 16 numbers of each row.
inline void widen_bf16_lines(const std::byte* lines, const float* scale, int row, int column, float* panel) {
  for (int half = 0; half < 2; ++half) {
    __m256i numbers[8];
    transpose_lines(lines + half * line_bytes / 2, numbers);
#pragma GCC unroll 8
    for (int r = 0; r < 8; ++r) {
      const int to = row + 8 * half + r;
      const __m256 factor = _mm256_set1_ps(scale ? scale[8 * half + r] : 1);
#pragma GCC unroll 2
      for (int part = 0; part < 2; ++part) {
        const __m128i eight = part ? _mm256_extracti128_si256(numbers[r], 1) : _mm256_castsi256_si128(numbers[r]);
        const __m256 floats = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(eight), 16));
        _mm256_storeu_ps(in_panel(panel, to, column + 8 * part), scale ? _mm256_mul_ps(floats, factor) : floats);
      }
    }
  }
}

// 32 numbers of each row.
inline void widen_int8_lines(const std::byte* lines, const float* scale, int row, int column, float* panel) {
  for (int half = 0; half < 2; ++half) {
    __m256i numbers[8];
    transpose_lines(lines + half * line_bytes / 2, numbers);
#pragma GCC unroll 8
    for (int r = 0; r < 8; ++r) {
      const int to = row + 8 * half + r;
      const __m256 factor = _mm256_set1_ps(scale[8 * half + r]);
#pragma GCC unroll 4
      for (int part = 0; part < 4; ++part) {
        __m128i eight = part / 2 ? _mm256_extracti128_si256(numbers[r], 1) : _mm256_castsi256_si128(numbers[r]);
        if (part % 2) eight = _mm_unpackhi_epi64(eight, eight);
        const __m256 floats = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(eight));
        _mm256_storeu_ps(in_panel(panel, to, column + 8 * part), _mm256_mul_ps(floats, factor));
      }
    }
  }
}

#else

inline void widen_bf16_lines(const std::byte* lines, const float* scale, int row, int column, float* panel) {
  const auto* numbers = reinterpret_cast<const bf16*>(lines);
  for (int r = 0; r < strip_rows; ++r)
    for (int k = 0; k < 16; ++k) {
      const float number = widen(numbers[k / 2 * 2 * strip_rows + 2 * r + k % 2]);
      *in_panel(panel, row + r, column + k) = scale ? number * scale[r] : number;
    }
}

inline void widen_int8_lines(const std::byte* lines, const float* scale, int row, int column, float* panel) {
  const auto* numbers = reinterpret_cast<const std::int8_t*>(lines);
  for (int r = 0; r < strip_rows; ++r)
    for (int k = 0; k < 32; ++k)
      *in_panel(panel, row + r, column + k) = numbers[k / 4 * line_bytes + 4 * r + k % 4] * scale[r];
}

#endif

inline void prefetch_lines(const std::byte* from, int count) {
  for (int i = 0; i < count; ++i) __builtin_prefetch(from + i * line_bytes, 0, 2);
}

// Of a format whose groups have scales: where 32 columns begin, and the scales of their group.
struct InGroup {
  const std::byte *lines, *scales;
};

inline InGroup in_group(const WidenStrip& job, int column, int scales_bytes) {
  const Format& format = job.format;
  const int group = column / format.group, within = group % format.record_groups();
  const std::byte* record = job.strip + format.head_bytes() + format.bytes_before(group - within);
  return {record + (1 + (within * format.group + column % format.group) / format.line_depth()) * line_bytes,
          record + within * scales_bytes};
}

void widen_unit(const WidenStrip& job, int column) {
  const int to = column - job.first;
  const auto put = job.format.scales;
  if (put == Scales::none) {
    const std::byte* lines = job.strip + column / 2 * line_bytes;
    prefetch_lines(lines + job.ahead, unit / 2);
    widen_bf16_lines(lines, nullptr, job.row, to, job.panel);
    widen_bf16_lines(lines + 8 * line_bytes, nullptr, job.row, to + unit / 2, job.panel);
  } else if (put == Scales::row) {
    const std::byte* lines = job.strip + sizeof(StripScales) + column / 4 * line_bytes;
    prefetch_lines(lines + job.ahead, unit / 4);
    widen_int8_lines(lines, reinterpret_cast<const StripScales*>(job.strip)->scale, job.row, to, job.panel);
  } else if (put == Scales::group) {
    const InGroup at = in_group(job, column, strip_rows);
    prefetch_lines(at.lines + job.ahead, unit / 8);
    alignas(line_bytes) std::byte bytes[unit / 4 * line_bytes];
    const GroupScales scales = group_scales(record_scales(at.scales));
    for (int i = 0; i < unit / 8; ++i) unpack_line(at.lines + i * line_bytes, scales, bytes + 2 * i * line_bytes);
    widen_int8_lines(bytes, reinterpret_cast<const StripScales*>(job.strip)->scale, job.row, to, job.panel);
  } else {
    const InGroup at = in_group(job, column, sizeof(float));
    prefetch_lines(at.lines + job.ahead, unit / 4);
    float group, scales[strip_rows], ones[strip_rows];
    __builtin_memcpy(&group, at.scales, sizeof group);
    for (int r = 0; r < strip_rows; ++r) {
      scales[r] = reinterpret_cast<const RowScales*>(job.strip)->scale[r] * group;
      ones[r] = 1;  // codes fit bf16 exactly, their products with scales do not
    }
    alignas(line_bytes) std::byte halves[unit / 2 * line_bytes];
    for (int i = 0; i < unit / 4; ++i)
      scale_e4m3(at.lines + i * line_bytes, strip_floats(ones), halves + 2 * i * line_bytes);
    widen_bf16_lines(halves, scales, job.row, to, job.panel);
    widen_bf16_lines(halves + 8 * line_bytes, scales, job.row, to + unit / 2, job.panel);
  }
}

void widen_columns(const WidenStrip& job) {
  for (int column = job.first; column < job.first + job.columns; column += unit) widen_unit(job, column);
}

template <int rows>
void add_block(const PanelProduct& job, int first, const float* panel, float* out) {
  const float* y[rows];
  Floats sums[2 * rows];
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) {
    y[r] = job.y + job.row[first + r] * job.y_stride;
    sums[2 * r] = load<Floats>(out + r * job.out_stride);
    sums[2 * r + 1] = load<Floats>(out + r * job.out_stride + lanes);
  }
  for (int n = 0; n < job.depth; ++n, panel += slice) {
    const Floats left = load<Floats>(panel), right = load<Floats>(panel + lanes);
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
      const Floats factor = y[r][n] - Floats{};
      sums[2 * r] += factor * left;
      sums[2 * r + 1] += factor * right;
    }
    keep_in_registers(sums);
  }
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) {
    store(sums[2 * r], out + r * job.out_stride);
    store(sums[2 * r + 1], out + r * job.out_stride + lanes);
  }
}

template <int rows = most_rows>
void add_rows(const PanelProduct& job, int first, int height, const float* panel, float* out) {
  if (height == rows) return add_block<rows>(job, first, panel, out);
  if constexpr (rows > 1) add_rows<rows - 1>(job, first, height, panel, out);
}

void multiply(const PanelProduct& job) {
  const int height = even_height(job.count, most_rows);
  for (int column = 0; column < job.columns; column += slice) {
    const float* panel = job.panel + column * panel_rows;
    for (int r = 0; r < job.count; r += height)
      add_rows(job, r, smaller(height, job.count - r), panel, job.out + r * job.out_stride + column);
  }
}

}  // namespace

constinit const TransposedKernels KTBENCH_TRANSPOSED{slice, widen_columns, multiply};

}  // namespace ktbench
