// Attention of a decode step on every granted ISA against plain sums, with arrays that end where their contents do.
#include <cmath>
#include <random>

#include "dense/attention.h"
#include "runtime/isa.h"
#include "runtime/pool.h"
#include "tests/check.h"
#include "tests/cpus.h"

namespace ktbench::tests {
namespace {

float widen(bf16 x) { return __builtin_bit_cast(float, static_cast<std::uint32_t>(x) << 16); }

std::vector<bf16> random_numbers(std::mt19937& random, std::size_t count) {  // +-[2^-2, 1)
  std::vector<bf16> numbers(count);
  for (bf16& x : numbers) x = static_cast<bf16>((random() & 1) << 15 | (125 + random() % 2) << 7 | (random() & 127));
  return numbers;
}

struct Sizes {
  int sequences, key_heads, group, size, value_size, positions;
};

struct Arrays {
  std::vector<bf16> q, keys, values, out;
  std::vector<std::int64_t> first, length;
  std::vector<float> sinks;

  Arrays(std::mt19937& random, const Sizes& s)
      : q(random_numbers(random, std::size_t{1} * s.sequences * s.key_heads * s.group * s.size)),
        keys(random_numbers(random, std::size_t{1} * s.sequences * s.key_heads * s.positions * s.size)),
        values(random_numbers(random, std::size_t{1} * s.sequences * s.key_heads * s.positions * s.value_size)),
        out(std::size_t{1} * s.sequences * s.key_heads * s.group * s.value_size, 0x7fc0), first(s.sequences),
        length(s.sequences, s.positions), sinks(s.key_heads * s.group, 0.5f) {
    first.back() = s.positions / 3;
  }

  AttentionCall call(const Sizes& s) {
    const int heads = s.key_heads * s.group;
    const auto cache = [&](const std::vector<bf16>& data, int n, int positions, int size) {
      return CacheOf<const bf16>{data.data(), std::size_t{1} * n * positions * size, std::size_t{1} * positions * size,
                                 static_cast<std::size_t>(size)};
    };
    return {s.sequences, heads, s.key_heads, s.size, s.value_size, cache(q, heads, 1, s.size),
            cache(keys, s.key_heads, s.positions, s.size), cache(values, s.key_heads, s.positions, s.value_size),
            first.data(), length.data(),
            {out.data(), std::size_t{1} * heads * s.value_size, static_cast<std::size_t>(s.value_size), 0}, 0.25f,
            sinks.data()};
  }
};

// `rounding`: of the weights.
void check_head(const AttentionCall& c, int b, int head, double rounding) {
  const int key_head = head / c.group();
  std::vector<double> sums(c.value_size);
  double total = std::exp(c.sinks[head]);
  for (std::int64_t p = c.first[b]; p < c.length[b]; ++p) {
    double score = 0;
    for (int k = 0; k < c.size; ++k) score += widen(c.q.at(b, head, 0)[k]) * widen(c.keys.at(b, key_head, p)[k]);
    const double weight = std::exp(score * c.scale);
    total += weight;
    for (int k = 0; k < c.value_size; ++k) sums[k] += weight * widen(c.values.at(b, key_head, p)[k]);
  }
  for (int k = 0; k < c.value_size; ++k)
    check(std::abs(widen(c.out.at(b, head, 0)[k]) - sums[k] / total) <= std::abs(sums[k] / total) / 256 + rounding,
          "number " + std::to_string(k) + " of head " + std::to_string(head) + " is off");
}

}  // namespace

KTBENCH_TEST(attention_on_every_isa) {
  std::mt19937 random(1);
  DecodeAttention attention(std::make_shared<ThreadPool>(four_cpus(), brief));
  for (const char* isa : {"reference", "avx2", "avx512", "avx512_bf16"}) {
    if (!granted(isa)) continue;
    const double rounding = std::string(isa) == "avx512_bf16" ? 1.0 / 256 : 1e-5;
    for (const Sizes& s : {Sizes{2, 2, 7, 64, 96, 70}, Sizes{1, 3, 1, 33, 5, 31}, Sizes{2, 1, 8, 128, 128, 700}}) {
      Arrays arrays(random, s);
      const AttentionCall call = arrays.call(s);
      attention.forward(call, attention_kernels(isa));
      for (int b = 0; b < s.sequences; ++b)
        for (int head = 0; head < call.query_heads; ++head) check_head(call, b, head, rounding);
    }
  }
}

KTBENCH_TEST(norms_and_rotations_end_with_their_rows) {
  std::mt19937 random(2);
  for (const char* isa : {"reference", "avx2", "avx512"}) {
    if (!granted(isa)) continue;
    for (const int size : {1, 31, 64, 130}) {
      const std::vector<bf16> x = random_numbers(random, size), weight = random_numbers(random, size);
      std::vector<bf16> out(size), expected(size);
      row_kernels(isa).norm(x.data(), size, {weight.data(), 1e-6f, 1}, out.data());
      row_kernels("reference").norm(x.data(), size, {weight.data(), 1e-6f, 1}, expected.data());
      row_kernels(isa).rotate({x.data(), weight.data(), size / 2 * 2}, out.data());
      row_kernels("reference").rotate({x.data(), weight.data(), size / 2 * 2}, expected.data());
      check(out == expected, std::string(isa) + " rounds otherwise at size " + std::to_string(size));
    }
  }
}

}  // namespace ktbench::tests
