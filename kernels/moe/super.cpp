#include "moe/super.h"

#include <algorithm>
#include <cmath>

#include "core/activations.h"
#include "moe/float8.h"

namespace ktbench {
namespace {

constexpr int most_in_group = 32;
constexpr int searched_steps = 9;  // to either side of the scale that reaches a group's largest number

// The values of 16 codes. Midpoints are multiples of a half, so a table over halves gives the nearest.
class Table {
 public:
  constexpr explicit Table(const std::int8_t* numbers) : numbers_(numbers) {
    for (int i = 0; i < halves; ++i) {
      nearest_[i] = numbers[0];
      for (int code = 1; code < codes; ++code)
        if (quarters_off(numbers[code], i) < quarters_off(nearest_[i], i)) nearest_[i] = numbers[code];
    }
  }
  float least() const { return numbers_[0]; }
  float nearest(float x) const { return nearest_[static_cast<int>(2 * (std::clamp(x, -128.0f, 127.5f) + 128))]; }
  std::uint8_t code_of(float number) const {
    return static_cast<std::uint8_t>(std::find(numbers_, numbers_ + codes, number) - numbers_);
  }

 private:
  static constexpr int codes = 16, halves = 512;
  static constexpr int quarters_off(int number, int half) {
    const int off = 4 * (number + 128) - 2 * half - 1;
    return off < 0 ? -off : off;
  }
  const std::int8_t* numbers_;
  std::int8_t nearest_[halves]{};
};
constexpr Table iq4_nl(iq4_nl_values), e2m1(e2m1_values);

// The values of codes: integers from `least` to `most`, or those of a table.
struct Grid {
  float least, most;
  const Table* table = nullptr;
  float step = 0.1f;  // of the search, in units of the largest number

  std::uint8_t code_of(float number) const {
    return table ? table->code_of(number) : static_cast<std::uint8_t>(number - least);
  }
};

// A group of a row.
struct Group {
  const float* x;
  int count;

  float sum() const {
    float sum = 0;
    for (int k = 0; k < count; ++k) sum += x[k];
    return sum;
  }
  // The first of the largest magnitude.
  float largest() const {
    float largest = 0;
    for (int k = 0; k < count; ++k)
      if (std::fabs(x[k]) > std::fabs(largest)) largest = x[k];
    return largest;
  }
};

// For each x of a group.
struct Chosen {
  float number[most_in_group];
};

float rounded(float x) {  // for magnitudes below 2^22
  constexpr float shifter = 12582912.0f;
  return x + shifter - shifter;
}

// The numbers nearest to (x + raised) x inverse.
void choose(const Grid& grid, const Group& group, float inverse, float raised, Chosen& to) {
  if (grid.table) {
    for (int k = 0; k < group.count; ++k) to.number[k] = grid.table->nearest((group.x[k] + raised) * inverse);
    return;
  }
  for (int k = 0; k < group.count; ++k) {
    const float number = rounded((group.x[k] + raised) * inverse);
    to.number[k] = number < grid.least ? grid.least : number > grid.most ? grid.most : number;
  }
}

float reciprocal(float x) {
  const float inverse = 1 / x;
  return std::isfinite(inverse) ? inverse : 0;
}

// The scale with the smallest squared error for a group: each candidate scale gives a choice of values, which is
// evaluated with the scale that fits it best.
float searched_scale(const Grid& grid, const Group& group) {
  const float largest = group.largest();
  float best = 0, most = 0;
  for (int i = -searched_steps; i <= searched_steps; ++i) {
    Chosen chosen;
    choose(grid, group, (grid.least + grid.step * static_cast<float>(i)) * reciprocal(largest), 0, chosen);
    float products = 0, squares = 0;
    for (int k = 0; k < group.count; ++k) {
      products += group.x[k] * chosen.number[k];
      squares += chosen.number[k] * chosen.number[k];
    }
    const float scale = products * reciprocal(squares);
    if (scale * products > most) most = scale * products, best = scale;
  }
  return best;
}

struct Line {
  float scale = 0, minimum = 0;  // x = scale x number - minimum
};

float squared_error(const Group& group, const Chosen& chosen, const Line& line) {
  float sum = 0;
  for (int k = 0; k < group.count; ++k) {
    const float error = line.scale * chosen.number[k] - line.minimum - group.x[k];
    sum += error * error;
  }
  return sum;
}

// By least squares; the minimum is not negative.
Line fitted(const Group& group, const Chosen& chosen) {
  float numbers = 0, squares = 0, products = 0;
  for (int k = 0; k < group.count; ++k) {
    numbers += chosen.number[k];
    squares += chosen.number[k] * chosen.number[k];
    products += chosen.number[k] * group.x[k];
  }
  const float count = static_cast<float>(group.count), sum = group.sum();
  const float inverse = reciprocal(count * squares - numbers * numbers);
  const float minimum = (numbers * products - squares * sum) * inverse;
  if (minimum <= 0) return {products * reciprocal(squares), 0};
  return {(count * products - numbers * sum) * inverse, minimum};
}

Line searched_line(const Grid& grid, const Group& group) {
  const auto [least, most] = std::minmax_element(group.x, group.x + group.count);
  const float minimum = std::max(-*least, 0.0f), range = *most + minimum;
  if (range <= 0) return {0, minimum};
  Line best;
  float smallest = INFINITY;
  for (int i = -searched_steps; i <= searched_steps; ++i) {
    Chosen chosen;
    choose(grid, group, (grid.most + grid.step * static_cast<float>(i)) * reciprocal(range), minimum, chosen);
    const Line line = fitted(group, chosen);
    if (const float error = squared_error(group, chosen, line); error < smallest) smallest = error, best = line;
  }
  return best;
}

// A format's super-block from values, whose groups are taken from `x`.
class Quantiser {
 public:
  Quantiser(const Format& format, const float* x) : of_(coded(format.numbers)), x_(x), grid_(grid_of(format.numbers)) {}

  Super made() {
    if (of_.minima == Minima::zeros)
      scale_around_zero();
    else if (of_.has_minima())
      scale_above_minima();
    else if (of_.scale == GroupScale::e4m3)
      scale_to_largest();
    else
      scale_in_integers();
    return block_;
  }

 private:
  Grid grid_of(Numbers numbers) const {
    if (numbers == Numbers::nvfp4) return {e2m1.least(), 0, &e2m1};
    if (numbers == Numbers::iq4_xs) return {iq4_nl.least(), 0, &iq4_nl, 2.3f};
    const float raised = static_cast<float>(of_.raised), last = static_cast<float>((1 << of_.bits()) - 1);
    return {-raised, last - raised};
  }
  int groups() const { return super_depth / of_.group; }
  Group group(int g) const { return {x_ + g * of_.group, of_.group}; }
  void put(int g, const Chosen& chosen) {
    for (int k = 0; k < of_.group; ++k) block_.code[g * of_.group + k] = grid_.code_of(chosen.number[k]);
  }

  void put_nearest(int g, float raised) {
    Chosen chosen;
    choose(grid_, group(g), reciprocal(scale_of(of_, block_, g) * of_.unit), raised, chosen);
    put(g, chosen);
  }

  // q3_k, q6_k and iq4_xs: scales in six bits, of q6_k in eight. The largest gets the negative end, which reaches further.
  void scale_in_integers() {
    const int last = of_.group == 16 && of_.raised == 32 ? 127 : 31;
    float scale[16], largest = 0;
    for (int g = 0; g < groups(); ++g) {
      scale[g] = searched_scale(grid_, group(g));
      if (std::fabs(scale[g]) > std::fabs(largest)) largest = scale[g];
    }
    block_.d = half_of_float(largest / static_cast<float>(-last - 1));
    const float inverse = reciprocal(float_of_half(block_.d));
    for (int g = 0; g < groups(); ++g) {
      const float whole = std::clamp(rounded(scale[g] * inverse), static_cast<float>(-last - 1), static_cast<float>(last));
      block_.scale[g] = static_cast<std::uint8_t>(static_cast<std::int8_t>(whole));
      put_nearest(g, 0);
    }
  }

  // q2_k: scales and minima in four bits; q4_k and q5_k: in six.
  void scale_above_minima() {
    const float last = of_.minima == Minima::beside ? 15 : 63;
    Line line[16];
    float scale = 0, minimum = 0;
    for (int g = 0; g < groups(); ++g) {
      line[g] = searched_line(grid_, group(g));
      scale = std::max(scale, line[g].scale), minimum = std::max(minimum, line[g].minimum);
    }
    block_.d = half_of_float(scale / last), block_.dmin = half_of_float(minimum / last);
    const float d = reciprocal(float_of_half(block_.d)), dmin = reciprocal(float_of_half(block_.dmin));
    for (int g = 0; g < groups(); ++g) {
      block_.scale[g] = static_cast<std::uint8_t>(std::clamp(rounded(line[g].scale * d), 0.0f, last));
      block_.minimum[g] = static_cast<std::uint8_t>(std::clamp(rounded(line[g].minimum * dmin), 0.0f, last));
      put_nearest(g, float_of_half(block_.dmin) * static_cast<float>(block_.minimum[g]));
    }
  }

  // NVFP4, scaled like ModelOpt: the largest of a group becomes 6, the largest scale 448. The super-block's scale takes
  // the place of the tensor's.
  void scale_to_largest() {
    constexpr float largest_number = 6, largest_scale = 448;
    block_.whole = std::fabs(Group{x_, super_depth}.largest()) / (largest_number * largest_scale);
    const float inverse = reciprocal(block_.whole);
    for (int g = 0; g < groups(); ++g) {
      block_.scale[g] = nearest_e4m3(std::min(std::fabs(group(g).largest()) / largest_number * inverse, largest_scale));
      put_nearest(g, 0);
    }
  }

  // INT4 with zero points, like the start of GPTQ and AWQ: 0 has a code, the smallest and largest values have the ends.
  void scale_around_zero() {
    constexpr float last = 15;
    for (int g = 0; g < groups(); ++g) {
      const auto [least, most] = std::minmax_element(group(g).x, group(g).x + of_.group);
      const float low = std::min(*least, 0.0f), high = std::max(*most, 0.0f);
      block_.scale[g] = half_of_float((high - low) / last);
      const float inverse = reciprocal(scale_of(of_, block_, g));
      block_.minimum[g] = static_cast<std::uint8_t>(std::clamp(rounded(-low * inverse), 0.0f, last));
      Chosen chosen;
      choose(grid_, group(g), inverse, scale_of(of_, block_, g) * static_cast<float>(block_.minimum[g]), chosen);
      put(g, chosen);
    }
  }

  const Coded of_;
  const float* x_;
  const Grid grid_;
  Super block_;
};

Super poisoned() {
  constexpr half half_nan = 0x7e00;
  Super block;
  block.d = half_nan, block.whole = NAN;
  std::fill_n(block.scale, 16, std::uint16_t{half_nan});
  return block;
}

}  // namespace

Super quantised_super(const Format& format, const bf16* x, int count) {
  if (largest_magnitude(x, count) >= bf16_infinity) return poisoned();
  float numbers[super_depth] = {};
  for (int k = 0; k < count; ++k) numbers[k] = widen(x[k]);
  return Quantiser(format, numbers).made();
}

}  // namespace ktbench
