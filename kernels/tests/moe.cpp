// The operator on every granted ISA against the reference, so that sanitizers see all of it without Python.
#include <sched.h>

#include <cmath>
#include <random>

#include "moe/forward.h"
#include "runtime/isa.h"
#include "runtime/pool.h"
#include "tests/check.h"

namespace ktbench::tests {
namespace {

using Numbers = std::mt19937;

bf16 small_bf16(Numbers& numbers) {  // +-[2^-4, 2^-2)
  const unsigned exponent = 123 + numbers() % 2;
  return static_cast<bf16>((numbers() & 1) << 15 | exponent << 7 | (numbers() & 127));
}

std::vector<bf16> random_matrix(Numbers& numbers, std::size_t elements) {
  std::vector<bf16> m(elements);
  for (bf16& x : m) x = small_bf16(numbers);
  return m;
}

float widen(bf16 x) { return __builtin_bit_cast(float, static_cast<std::uint32_t>(x) << 16); }

std::shared_ptr<ThreadPool> small_pool() {
  const int cpu = sched_getcpu();
  return std::make_shared<ThreadPool>(std::vector<int>{cpu, cpu, cpu}, std::chrono::microseconds(20));
}

struct Layer {
  Geometry geometry;
  std::shared_ptr<PackedExperts> packed;
};

Layer random_layer(Numbers& numbers, Geometry g, ThreadPool* pool) {
  Layer layer{g, std::make_shared<PackedExperts>(g)};
  const auto h = static_cast<std::size_t>(g.hidden), i = static_cast<std::size_t>(g.intermediate);
  for (int e = 0; e < g.experts; ++e) {
    const auto gate = random_matrix(numbers, h * i), up = random_matrix(numbers, h * i);
    const auto down = random_matrix(numbers, h * i);
    layer.packed->write(e, {gate.data(), h}, {up.data(), h}, {down.data(), i}, pool);
    std::vector<bf16> gate_back(h * i), up_back(h * i), down_back(h * i);
    layer.packed->read(e, {gate_back.data(), h}, {up_back.data(), h}, {down_back.data(), i});
    check(gate == gate_back && up == up_back && down == down_back, "packing lost something");
  }
  return layer;
}

double worst_difference(const std::vector<bf16>& a, const std::vector<bf16>& b) {
  double worst = 0, size = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    worst = std::max<double>(worst, std::abs(widen(a[i]) - widen(b[i])));
    size = std::max<double>(size, std::abs(widen(b[i])));
  }
  return worst / size;
}

void check_all_isas(Geometry g, int tokens, int per_token) {
  Numbers numbers(g.hidden * 31 + tokens);
  const auto pool = small_pool();
  const Layer layer = random_layer(numbers, g, pool.get());
  MoE moe(layer.packed, pool);
  const auto hidden = random_matrix(numbers, static_cast<std::size_t>(tokens) * g.hidden);
  std::vector<std::int64_t> ids(tokens * per_token);
  std::vector<float> gates(ids.size(), 1.0f / static_cast<float>(per_token));
  for (auto& id : ids) id = static_cast<std::int64_t>(numbers() % g.experts);
  const Routing routing{ids.data(), gates.data(), tokens, per_token};
  std::vector<bf16> expected(hidden.size()), out(hidden.size());
  moe.forward(hidden.data(), routing, expected.data(), {&reference_kernels, &reference_kernels, 0, false});
  for (const Isa& isa : isas())
    for (const bool dynamic : {false, true}) {
      if (!isa.missing.empty()) continue;
      moe.forward(hidden.data(), routing, out.data(), {isa.kernels, isa.kernels, 0, dynamic});
      const double difference = worst_difference(out, expected);
      check(difference < 0.01, isa.name + " differs by " + std::to_string(difference));
    }
}

KTBENCH_TEST(one_token) { check_all_isas({4, 70, 40}, 1, 2); }
KTBENCH_TEST(few_tokens_ragged) { check_all_isas({3, 33, 17}, 7, 2); }
KTBENCH_TEST(blocks_of_every_height) {
  for (int tokens = 1; tokens <= 14; ++tokens) check_all_isas({1, 64, 32}, tokens, 1);
}
KTBENCH_TEST(many_tokens_on_one_expert) { check_all_isas({1, 832, 64}, 300, 1); }
KTBENCH_TEST(wide_tasks) { check_all_isas({1, 2080, 272}, 270, 1); }
KTBENCH_TEST(one_by_one) { check_all_isas({1, 1, 1}, 2, 16); }

KTBENCH_TEST(an_id_out_of_range_is_named) {
  const auto pool = small_pool();
  MoE moe(std::make_shared<PackedExperts>(Geometry{2, 32, 32}), pool);
  std::vector<bf16> rows(64);
  const std::int64_t ids[] = {0, 2};
  const float gates[] = {1, 1};
  check_throws<std::out_of_range>(
      [&] {
        moe.forward(rows.data(), {ids, gates, 2, 1}, rows.data(), {&reference_kernels, &reference_kernels, 0, false});
      },
      "expert id 2 of token 1 is not in 0..1");
}

}  // namespace
}  // namespace ktbench::tests
