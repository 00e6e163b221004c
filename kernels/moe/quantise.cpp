// Compiled once for any x86-64 and once for AVX2: searching the scales of int4 takes most of the loading time.
#include "moe/quantise.h"

#include "core/activations.h"

#ifndef KTBENCH_QUANTISE_STRIP
#define KTBENCH_QUANTISE_STRIP quantise_strip_portable
#endif

namespace ktbench {
namespace {

constexpr int chunk = 512;  // of a row, a multiple of every group

constexpr int group_scale_limit = 15;  // x -8: int8 holds the product
// A group's largest magnitude in units of its scale: for Gaussian groups the best is between these.
constexpr float least_units = 6.4f, most_units = 9.2f, usual_units = 7.7f;

inline float rounded(float x) {
  constexpr float shifter = 12582912.0f;
  return x + shifter - shifter;
}

inline float int4(float x) {
  const float q = rounded(x);
  return q < -8.0f ? -8.0f : q > 7.0f ? 7.0f : q;
}

struct Row {
  const bf16* from;
  int depth;
  float lift, inverse;  // weight x lift x inverse is in units of the row's scale

  void load(int first, int count, float* to) const {
    for (int k = 0; k < count; ++k) to[k] = first + k < depth ? widen(from[first + k]) * lift * inverse : 0.0f;
  }
};

// Squared error of a group with one scale, summed in eight lanes: the same for any register width.
float squared_error(const float* x, int count, float scale) {
  float lanes[8] = {};
  const float inverse = 1.0f / scale;
  for (int k = 0; k < count; k += 8)
    for (int i = 0; i < 8; ++i) {
      const float error = x[k + i] - int4(x[k + i] * inverse) * scale;
      lanes[i] += error * error;
    }
  float sum = 0;
  for (const float lane : lanes) sum += lane;
  return sum;
}

float largest_signed(const float* x, int count) {
  float largest = 0;
  for (int k = 0; k < count; ++k)
    if (__builtin_fabsf(x[k]) > __builtin_fabsf(largest)) largest = x[k];
  return largest;
}

inline int bounded(float x) { return x < 1 ? 1 : x > group_scale_limit ? group_scale_limit : static_cast<int>(x); }

// The largest magnitude goes to the side of -8, which has one step more.
int group_scale(const float* x, int count) {
  const float largest = largest_signed(x, count), magnitude = __builtin_fabsf(largest);
  if (magnitude == 0) return 0;
  const int sign = largest < 0 ? 1 : -1;
  int best = 0;
  float least = 0;
  for (int s = bounded(magnitude / most_units), last = bounded(magnitude / least_units + 1); s <= last; ++s) {
    const float error = squared_error(x, count, static_cast<float>(sign * s));
    if (best == 0 || error < least) best = sign * s, least = error;
  }
  return best;
}

std::uint32_t int4_pairs(const float* x, float inverse) {
  std::uint32_t word = 0;
  for (int b = 0; b < 4; ++b) {
    const int low = static_cast<int>(int4(x[b] * inverse)), high = static_cast<int>(int4(x[b + 4] * inverse));
    word |= static_cast<std::uint32_t>((low & 15) | (high & 15) << 4) << 8 * b;
  }
  return word;
}

std::int32_t int4_sum(const float* x, int count, float inverse) {
  std::int32_t sum = 0;
  for (int k = 0; k < count; ++k) sum += static_cast<std::int32_t>(int4(x[k] * inverse));
  return sum;
}

// Returns the sum of the row's weights in units of its scale.
std::int32_t int4_row(const Row& row, int r, int padded, const Format& format, std::byte* body) {
  std::int32_t sum = 0;
  float x[chunk];
  for (int first = 0; first < padded; first += chunk) {
    const int here = padded - first < chunk ? padded - first : chunk;
    row.load(first, here, x);
    for (int k = 0; k < here; k += format.group) {
      const int g = (first + k) / format.group;
      std::byte* record = body + format.bytes_before(g / groups_per_record * groups_per_record);
      const int scale = group_scale(x + k, format.group);
      const float inverse = scale ? 1.0f / static_cast<float>(scale) : 0.0f;
      record[g % groups_per_record * strip_rows + r] = static_cast<std::byte>(scale);
      std::byte* line = record + (1 + g % groups_per_record * format.group / 8) * line_bytes;
      for (int i = 0; i < format.group; i += 8, line += line_bytes) {
        const std::uint32_t word = int4_pairs(x + k + i, inverse);
        __builtin_memcpy(line + r * sizeof word, &word, sizeof word);
      }
      sum += scale * int4_sum(x + k, format.group, inverse);
    }
  }
  return sum;
}

std::int32_t int8_row(const Row& row, int r, int padded, std::byte* body) {
  std::int32_t sum = 0;
  float x[chunk];
  for (int first = 0; first < padded; first += chunk) {
    const int here = padded - first < chunk ? padded - first : chunk;
    row.load(first, here, x);
    std::int8_t q[chunk];
    for (int k = 0; k < here; ++k) q[k] = static_cast<std::int8_t>(rounded(x[k])), sum += q[k];
    for (int k = 0; k < here; k += 4)
      __builtin_memcpy(body + static_cast<std::size_t>(first + k) / 4 * line_bytes + r * 4, q + k, 4);
  }
  return sum;
}

}  // namespace

void KTBENCH_QUANTISE_STRIP(const bf16* from, std::size_t stride, int rows, int depth, const Format& format,
                            std::byte* strip) {
  const bool is_int4 = format.scales == Scales::group;
  const float units = is_int4 ? usual_units * group_scale_limit : int8_largest;
  const int padded = format.padded_depth(depth);
  StripScales scales{};
  std::byte* body = strip + sizeof scales;
  for (int r = 0; r < strip_rows; ++r) {
    const bf16* at = from + r * stride;
    const Int8Scale s = int8_scale(r < rows ? largest_magnitude(at, depth) : bf16{0});
    const float wider = units / int8_largest;
    const Row row{at, r < rows && s.finite() ? depth : 0, s.lift, s.inverse * wider};
    scales.scale[r] = s.scale / wider;
    scales.offset[r] = -128 * (is_int4 ? int4_row(row, r, padded, format, body) : int8_row(row, r, padded, body));
  }
  __builtin_memcpy(strip, &scales, sizeof scales);
}

}  // namespace ktbench
