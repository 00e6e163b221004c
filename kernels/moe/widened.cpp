// Compiled once for any x86-64 and once for AVX2: the float32 reference of each round reads as many weights as a step.
#include "moe/widened.h"

#include "core/coded.h"
#include "core/float8.h"
#include "core/half.h"

#ifndef KTBENCH_MULTIPLY_STRIP
#define KTBENCH_MULTIPLY_STRIP multiply_strip_portable
#endif

namespace ktbench {
namespace {

// One value of each of as many rows as an AVX2 register holds. gcc 12 keeps wider vectors in memory.
constexpr int part_rows = 8;
using Floats = float __attribute__((vector_size(part_rows * sizeof(float))));
using Words = std::int32_t __attribute__((vector_size(part_rows * sizeof(std::int32_t))));

constexpr int chunk = super_depth;  // of k: whole groups of any format

Words words_at(const std::byte* line) {
  Words words;
  __builtin_memcpy(&words, line, sizeof words);
  return words;
}

Floats floats_of(Words numbers) { return __builtin_convertvector(numbers, Floats); }

// `number` applied to one `Stored` of each row, side by side in `at`.
template <class Stored, class Number>
inline Floats each_row(const std::byte* at, Number number) {
  Floats floats;
  for (int row = 0; row < part_rows; ++row) {
    Stored stored;
    __builtin_memcpy(&stored, at + row * sizeof stored, sizeof stored);
    floats[row] = number(stored);
  }
  return floats;
}

float float_of_bf16(bf16 bits) { return __builtin_bit_cast(float, static_cast<std::uint32_t>(bits) << 16); }
float float_of_e4m3(std::uint8_t code) { return float_of_bf16(bf16_of_e4m3(code)); }
float float_of_int8(std::int8_t number) { return number; }
float float_of_power(std::uint8_t power) { return float_of_bf16(bf16_of_power(power)); }
float same(float x) { return x; }

Floats looked_up(const std::int8_t* values, Words codes) {
  Words numbers;
  for (int row = 0; row < part_rows; ++row) numbers[row] = values[codes[row]];
  return floats_of(numbers);
}

void widen_bf16(const std::byte* line, int count, Floats* to) {
  for (int k = 0; k < count; k += 2, line += line_bytes) {
    const Words pairs = words_at(line);
    to[k] = reinterpret_cast<Floats>(pairs << 16);
    to[k + 1] = reinterpret_cast<Floats>(pairs & ~0xffff);
  }
}

void widen_int8(const std::byte* line, int count, Floats scale, Floats* to) {
  for (int k = 0; k < count; k += 4, line += line_bytes)
    for (int i = 0; i < 4; ++i) to[k + i] = scale * floats_of(words_at(line) << (24 - 8 * i) >> 24);
}

void widen_e4m3(const std::byte* line, int count, Floats scale, Floats* to) {
  for (int k = 0; k < count; k += 4, line += line_bytes)
    for (int i = 0; i < 4; ++i) {
      Floats numbers;
      for (int row = 0; row < part_rows; ++row)
        numbers[row] = float_of_e4m3(static_cast<std::uint8_t>(line[e4m3_byte(row, i)]));
      to[k + i] = numbers * scale;
    }
}

// Without `values` a nibble is an integer from -8 to 7.
void widen_nibbles(const std::byte* line, int count, Floats scale, const std::int8_t* values, Floats* to) {
  for (int k = 0; k < count; k += 8, line += line_bytes)
    for (int i = 0; i < 8; ++i) {
      const int lowest = i % 4 * 8 + i / 4 * 4;
      const Words words = words_at(line);
      to[k + i] = scale * (values ? looked_up(values, words >> lowest & 15) : floats_of(words << (28 - lowest) >> 28));
    }
}

// A strip's scales of whole rows, for the rows from `row` on.
Floats row_scales(const std::byte* strip, int row) { return each_row<float>(strip + row * sizeof(float), same); }

// The scales of a group of each row. `record` begins with them; the group is number `within` of it.
Floats scales_of(const std::byte* strip, const Format& format, int row, const std::byte* record, int within) {
  const std::byte* at = record + (within * strip_rows + row) * format.scale_bytes();
  switch (format.scales) {
    case Scales::group: return each_row<std::int8_t>(at, float_of_int8) * row_scales(strip, row);
    case Scales::block: return each_row<half>(at, float_of_half);
    case Scales::block_bf16: return each_row<bf16>(at, float_of_bf16);
    case Scales::power: return each_row<std::uint8_t>(at, float_of_power);
    default: break;
  }
  float of_all;  // tile
  __builtin_memcpy(&of_all, record + within * sizeof of_all, sizeof of_all);
  return of_all * row_scales(strip, row);
}

void widen_groups(const std::byte* strip, const Format& format, int row, int first, int count, Floats* to) {
  const std::byte* body = strip + (format.scales == Scales::group ? sizeof(StripScales) : sizeof(StripOffsets));
  for (int k = 0; k < count; k += format.group) {
    const int group = (first + k) / format.group, within = group % format.record_groups();
    const std::byte* record = body + format.bytes_before(group - within);
    const std::byte* line = record + (1ul + within * format.group / format.line_depth()) * line_bytes + 4 * row;
    const Floats scale = scales_of(strip, format, row, record, within);
    switch (format.numbers) {
      case Numbers::int8: widen_int8(line, format.group, scale, to + k); break;
      case Numbers::e4m3: widen_e4m3(line, format.group, scale, to + k); break;
      case Numbers::int4: widen_nibbles(line, format.group, scale, nullptr, to + k); break;
      case Numbers::iq4_nl: widen_nibbles(line, format.group, scale, iq4_nl_values, to + k); break;
      default: widen_nibbles(line, format.group, scale, e2m1_values, to + k);
    }
  }
}

struct GroupOf {
  Floats scale, minimum;  // of the weights: scale x number + minimum
};

GroupOf group_of(const std::byte* record, const Coded& of, int row, int g) {
  const std::byte* scales = record + of.head_lines() * line_bytes;
  const int at = g * strip_rows + row;
  const auto bytes = [&](const std::byte* from, auto number) { return each_row<std::uint8_t>(from + at, number); };
  const auto whole = [](std::uint8_t byte) { return static_cast<float>(byte); };
  const std::byte* minima = scales + of.scale_lines() * line_bytes;
  if (of.scale == GroupScale::half) {
    const Floats scale = each_row<half>(scales + at * sizeof(half), float_of_half);
    return {scale, -scale * bytes(minima, whole)};
  }
  if (of.scale == GroupScale::e4m3) return {row_scales(record, row) * of.unit * bytes(scales, float_of_e4m3), Floats{}};
  const Floats d = each_row<half>(record + row * sizeof(half), float_of_half) * of.unit;
  if (!of.has_minima()) return {d * each_row<std::int8_t>(scales + at, float_of_int8), Floats{}};
  const Floats dmin = each_row<half>(record + line_bytes / 2 + row * sizeof(half), float_of_half);
  if (of.minima == Minima::apart) return {d * bytes(scales, whole), -dmin * bytes(minima, whole)};
  return {d * bytes(scales, [](std::uint8_t both) { return static_cast<float>(both & 15); }),
          -dmin * bytes(scales, [](std::uint8_t both) { return static_cast<float>(both >> 4); })};
}

// Line `i` of 64, byte `byte` of each row: the combined bits of the planes.
Words codes_of(const std::byte* planes, const Coded& of, int i, int byte) {
  Words codes{};
  int place = 0;
  const auto add = [&](bool there, int bits) {
    if (!there) return;
    const int in_byte = 8 / bits;
    codes |= (words_at(planes + i / in_byte * line_bytes) >> (8 * byte + i % in_byte * bits) & ((1 << bits) - 1)) << place;
    planes += super_depth / 4 / in_byte * line_bytes;
    place += bits;
  };
  add(of.four, 4);
  add(of.two, 2);
  add(of.one, 1);
  return codes;
}

void widen_super(const std::byte* record, Numbers numbers, int row, Floats* to) {
  const Coded of = coded(numbers);
  const std::int8_t* const values = of.table ? coded_values(numbers) : nullptr;
  GroupOf group{};
  for (int k = 0; k < super_depth; ++k) {
    if (k % of.group == 0) group = group_of(record, of, row, k / of.group);
    const Words codes = codes_of(record + of.planes_at() + 4 * row, of, k / 4, k % 4);
    to[k] = group.scale * (values ? looked_up(values, codes) : floats_of(codes - of.raised)) + group.minimum;
  }
}

// The weights of [first, first + count) of the rows from `row` on.
void widen_chunk(const std::byte* strip, const Format& format, int row, int first, int count, Floats* to) {
  switch (format.scales) {
    case Scales::none: return widen_bf16(strip + first / 2 * line_bytes + 4 * row, count, to);
    case Scales::row:
      return widen_int8(strip + sizeof(StripScales) + first / 4 * line_bytes + 4 * row, count, row_scales(strip, row), to);
    case Scales::super: {
      const std::byte* record = strip + sizeof(StripOffsets) + format.bytes_before(first / super_depth);
      return widen_super(record, format.numbers, row, to);
    }
    default: return widen_groups(strip, format, row, first, count, to);
  }
}

Floats product(const Floats* weights, const float* x, int count) {
    Floats sums[4] = {};  // independent of each other
  for (int k = 0; k < count; k += 4)
    for (int i = 0; i < 4; ++i) sums[i] += weights[k + i] * x[k + i];
  return sums[0] + sums[1] + (sums[2] + sums[3]);
}

}  // namespace

void KTBENCH_MULTIPLY_STRIP(const std::byte* strip, const Format& format, int depth, const float* x, int tokens,
                            float (*out)[strip_rows]) {
  __builtin_memset(out, 0, tokens * sizeof *out);
  for (int first = 0; first < depth; first += chunk)
    for (int row = 0; row < strip_rows; row += part_rows) {
      const int count = chunk < depth - first ? chunk : depth - first;
      Floats weights[chunk];
      widen_chunk(strip, format, row, first, count, weights);
      for (int t = 0; t < tokens; ++t) {
        Floats sum;
        __builtin_memcpy(&sum, out[t] + row, sizeof sum);
        sum += product(weights, x + 1ul * t * depth + first, count);
        __builtin_memcpy(out[t] + row, &sum, sizeof sum);
      }
    }
}

}  // namespace ktbench
