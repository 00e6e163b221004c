#include "moe/float8.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <vector>

#include "core/activations.h"
#include "core/float8.h"

namespace ktbench {
namespace {

constexpr float largest_number = 448;
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

// The places of group `g` and its scale in the body of a strip.
std::size_t lines_at(const Format& format, int g) {
  return (static_cast<std::size_t>(g / tiles_per_record) + 1 + 1ul * g * format.group / format.line_depth()) * line_bytes;
}
std::size_t scale_at(const Format& format, int g) {
  const int within = g % tiles_per_record;
  return lines_at(format, g - within) - line_bytes + within * sizeof(float);
}

// A strip of zeros, to be filled.
class Writer {
 public:
  Writer(const Format& format, int padded, std::byte* strip)
      : format_(format), strip_(strip), body_(strip + format.head_bytes()) {
    std::memset(strip, 0, format.strip_bytes(padded));
    std::fill_n(rows_.scale, strip_rows, 1.0f);
  }
  ~Writer() { std::memcpy(strip_, &rows_, sizeof rows_); }

  void scale_row(int row, float scale) { rows_.scale[row] = scale; }
  void scale_group(int group, float scale) { std::memcpy(body_ + scale_at(format_, group), &scale, sizeof scale); }
  void put(int row, int k, std::uint8_t code) {
    const int within = k % format_.group;
    std::byte* line = body_ + lines_at(format_, k / format_.group) + within / 4 * line_bytes;
    line[e4m3_byte(row, within % 4)] = static_cast<std::byte>(code);
    if ((code & 0x7f) == e4m3_nan) scale_row(row, nan);
  }

 private:
  const Format& format_;
  std::byte* strip_;
  std::byte* body_;
  RowScales rows_;
};

float scale_in(const BlockView& from, int row, int k) {
  float scale;
  std::memcpy(&scale, from.at(row, k).data, sizeof scale);
  return scale;
}

bool same(float a, float b) { return a == b || (a != a && b != b); }

}  // namespace

// Steps are 2^-9 below 2^-6, and eighths of the power of two above.
std::uint8_t nearest_e4m3(float x) {
  const float magnitude = std::fabs(x);
  const int exponent = magnitude < 0x1p-6f ? -6 : std::ilogb(magnitude);
  const int eighths = static_cast<int>(std::nearbyint(std::ldexp(magnitude, 3 - exponent)));  // 8 to 16, or below
  const int code = (exponent + 6) * 8 + eighths;
  return static_cast<std::uint8_t>((std::signbit(x) ? 0x80 : 0) | std::min<int>(code, e4m3_largest));
}

void pack_float8(const MatrixView& from, int rows, int depth, const Format& format, std::byte* strip) {
  Writer to(format, format.padded_depth(depth), strip);
  std::vector<int> finite;
  for (int r = 0; r < rows && r < strip_rows; ++r)
    if (largest_magnitude(from.at(r, 0).data, depth) < bf16_infinity) finite.push_back(r);
    else to.scale_row(r, nan);
  for (int first = 0; first < depth; first += format.group) {
    const int count = std::min(format.group, depth - first);
    bf16 largest = 0;
    for (const int r : finite) largest = std::max(largest, largest_magnitude(from.at(r, first).data, count));
    const float scale = widen(largest) / largest_number;
    to.scale_group(first / format.group, scale);
    if (scale == 0) continue;
    for (const int r : finite)
      for (int k = first; k < first + count; ++k) to.put(r, k, nearest_e4m3(widen(*from.at(r, k).data) / scale));
  }
}

void pack_float8(const BlockView& from, int rows, int depth, const Format& format, std::byte* strip) {
  Writer to(format, format.padded_depth(depth), strip);
  rows = std::clamp(rows, 0, strip_rows);
  if (rows == 0) return;
  bool by_row = true, by_group = true;
  for (int r = 0; r < rows; ++r)
    for (int k = 0; k < depth; k += format.group) {
      by_row = by_row && same(scale_in(from, r, k), scale_in(from, r, 0));
      by_group = by_group && same(scale_in(from, r, k), scale_in(from, 0, k));
    }
  if (!by_row && !by_group)
    throw std::invalid_argument("fp8: a scale for each row and each 128 columns; supported are a scale for each row, "
                                "or for each 128 columns of 16 rows");
  for (int k = 0; k < depth; k += format.group) to.scale_group(k / format.group, by_group ? scale_in(from, 0, k) : 1.0f);
  for (int r = 0; r < rows; ++r) {
    if (!by_group) to.scale_row(r, scale_in(from, r, 0));
    for (int k = 0; k < depth; k += format.group) {
      const auto* codes = reinterpret_cast<const std::uint8_t*>(from.at(r, k).data + sizeof(float));
      for (int i = 0; i < std::min(format.group, depth - k); ++i) to.put(r, k + i, codes[i]);
    }
  }
}

void unpack_float8(const std::byte* strip, int rows, int depth, const Format& format, float* to, std::size_t stride) {
  const std::byte* const body = strip + format.head_bytes();
  RowScales row_scales;
  std::memcpy(&row_scales, strip, sizeof row_scales);
  for (int k = 0; k < depth; ++k) {
    float scale;
    std::memcpy(&scale, body + scale_at(format, k / format.group), sizeof scale);
    const std::byte* line = body + lines_at(format, k / format.group) + k % format.group / 4 * line_bytes;
    for (int r = 0; r < strip_rows && r < rows; ++r) {
      const auto code = static_cast<std::uint8_t>(line[e4m3_byte(r, k % 4)]);
      to[r * stride + k] = widen(bf16_of_e4m3(code)) * scale * row_scales.scale[r];
    }
  }
}

}  // namespace ktbench
