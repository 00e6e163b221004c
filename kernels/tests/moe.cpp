// The operator at every precision, on every granted ISA, over domains, against the reference: sanitizers see all of it
// without Python. Whether the reference is right is the Python tests' question.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <limits>
#include <random>
#include <thread>

#include "moe/forward.h"
#include "moe/widened.h"
#include "runtime/isa.h"
#include "runtime/pool.h"
#include "tests/check.h"
#include "tests/cpus.h"
#include "tests/formats.h"

namespace ktbench::tests {
namespace {

using Numbers = std::mt19937;

// A size along k that the format can have.
int depth_in(const Format& f, int depth) { return f.has_blocks() ? round_up(depth, f.group) : depth; }

// A layer of the format with about the sizes of `g`.
Geometry geometry_in(const Format& f, Geometry g) {
  g.hidden = depth_in(f, g.hidden);
  g.intermediate = depth_in(f, g.intermediate);
  g.format = f;
  return g;
}

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

struct Expert {
  std::vector<bf16> gate, up, down;
  std::vector<float> biases;  // gate's, up's and down's; empty where there are none

  BiasView bias_view(const Geometry& g) const {
    if (biases.empty()) return {};
    return {biases.data(), biases.data() + g.intermediate, biases.data() + 2 * g.intermediate};
  }
};

Expert random_expert(Numbers& numbers, const Geometry& g) {
  const std::size_t elements = std::size_t{1} * g.hidden * g.intermediate;
  Expert expert;
  for (auto* matrix : {&expert.gate, &expert.up, &expert.down}) *matrix = random_matrix(numbers, elements);
  if (g.biases)
    for (const bf16 x : random_matrix(numbers, 2 * g.intermediate + g.hidden)) expert.biases.push_back(widen(x));
  return expert;
}

// A matrix of rows of `depth` as a format takes it; `memory` keeps blocks.
AnyView view_of(const std::vector<bf16>& matrix, std::size_t depth, const Format& format, std::vector<std::byte>& memory) {
  if (!format.has_supers()) return MatrixView{matrix.data(), depth};
  memory = blocks_of(matrix, format);
  const std::size_t bytes = format.block_bytes();
  return BlockView{memory.data(), depth / format.group * bytes, bytes, format.group};
}

void write(PackedExperts& packed, int index, const Expert& expert, Team* team) {
  const auto hidden = static_cast<std::size_t>(packed.geometry().hidden);
  const auto intermediate = static_cast<std::size_t>(packed.geometry().intermediate);
  const Geometry& g = packed.geometry();
  std::vector<std::byte> memory[3];
  packed.write(index, view_of(expert.gate, hidden, g.format, memory[0]), view_of(expert.up, hidden, g.format, memory[1]),
               view_of(expert.down, intermediate, g.down_format(), memory[2]), team, expert.bias_view(g));
}

// Gate, up and down, one after the other.
std::vector<float> read(const PackedExperts& packed, int index, Team* team) {
  const auto hidden = static_cast<std::size_t>(packed.geometry().hidden);
  const auto intermediate = static_cast<std::size_t>(packed.geometry().intermediate);
  const std::size_t elements = hidden * intermediate;
  std::vector<float> all(3 * elements);
  packed.read(index, {all.data(), hidden}, {all.data() + elements, hidden}, {all.data() + 2 * elements, intermediate},
              team);
  return all;
}

// int4 cuts a group's largest magnitudes short where that brings the others nearer, by no more than a quarter.
void check_packed(const PackedExperts& packed, int index, const Expert& expert, Team* team) {
  const std::vector<float> back = read(packed, index, team);
  const Geometry& g = packed.geometry();
  const bool exact = g.format == Format{} && g.down_format() == Format{};
  std::size_t i = 0;
  for (const auto* matrix : {&expert.gate, &expert.up, &expert.down})
    for (const bf16 x : *matrix)
      check(std::abs(back[i++] - widen(x)) <= (exact ? 0.0f : 0.25f / 4), "packing lost too much");
}

std::shared_ptr<PackedExperts> random_layer(Numbers& numbers, const Geometry& g, int domains, Team* team,
                                            const Glu& glu = {}) {
  auto packed = std::make_shared<PackedExperts>(g, domains, std::vector<int>{}, glu);
  for (int e = 0; e < g.experts; ++e) {
    const Expert expert = random_expert(numbers, g);
    write(*packed, e, expert, team);
    if (!g.format.has_supers() && !g.down_format().has_supers()) check_packed(*packed, e, expert, team);
  }
  return packed;
}

struct Batch {
  std::vector<bf16> hidden;
  std::vector<std::int64_t> ids;
  std::vector<float> gates;
  int tokens;

  Batch(Numbers& numbers, const Geometry& g, int tokens_, int per_token)
      : hidden(random_matrix(numbers, std::size_t{1} * tokens_ * g.hidden)), ids(tokens_ * per_token),
        gates(ids.size(), 1.0f / static_cast<float>(per_token)), tokens(tokens_) {
    for (auto& id : ids) id = static_cast<std::int64_t>(numbers() % g.experts);
  }

  ForwardInputs into(std::vector<bf16>& out) const {
    out.assign(hidden.size(), 0x7fc0);
    return {hidden.data(), {ids.data(), gates.data(), tokens, static_cast<int>(ids.size()) / tokens}, out.data()};
  }
};

ForwardOptions on(const Kernels& kernels, bool dynamic = false, bool numa = false) {
  const KernelPair all{&kernels, &kernels, 0};
  return {all, all, dynamic, numa};
}

const Kernels& reference_for(const PackedExperts& packed) {
  return kernels_of("reference", packed.geometry().format);
}

double worst_difference(const std::vector<bf16>& a, const std::vector<bf16>& b) {
  double worst = 0, size = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(widen(a[i]) - widen(b[i]));
    worst = difference <= worst ? worst : difference;  // NaN, too
    size = std::max<double>(size, std::abs(widen(b[i])));
  }
  return worst / size;
}

std::vector<bf16> expected_from(MoE& moe, const Batch& batch) {
  std::vector<bf16> out;
  moe.forward(batch.into(out), on(reference_for(moe.experts())));
  return out;
}

bf16 rounded(float x) {
  const auto bits = __builtin_bit_cast(std::uint32_t, x);
  return static_cast<bf16>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// The same weights, rounded to bf16, and activations as they are: what kernels without int8 activations compute.
std::vector<bf16> expected_in_bf16(MoE& moe, const Batch& batch) {
  const PackedExperts& packed = moe.experts();
  Geometry g = packed.geometry();
  g.format = {}, g.own_down_format = {};
  const auto wide = std::make_shared<PackedExperts>(g, 1, std::vector<int>{}, packed.glu());
  const std::size_t elements = std::size_t{1} * g.hidden * g.intermediate;
  for (int e = 0; e < g.experts; ++e) {
    const std::vector<float> numbers = read(packed, e, nullptr);
    Expert expert;
    const float* from = numbers.data();
    for (auto* matrix : {&expert.gate, &expert.up, &expert.down}) {
      std::transform(from, from + elements, std::back_inserter(*matrix), rounded);
      from += elements;
    }
    if (g.biases) {
      expert.biases.resize(2 * g.intermediate + g.hidden);
      float* const biases = expert.biases.data();
      packed.read_biases(e, {biases, biases + g.intermediate, biases + 2 * g.intermediate});
    }
    write(*wide, e, expert, nullptr);
  }
  MoE in_bf16(wide, std::make_shared<ThreadPool>(four_cpus(), brief));
  return expected_from(in_bf16, batch);
}

bool is_int8(Activation kind) { return kind == Activation::u8 || kind == Activation::s16; }

struct Scene {
  std::shared_ptr<MoE> moe;
  Batch batch;
  std::vector<bf16> expected, in_bf16;

  void check_forward(const NamedKernels& on_isa, const ForwardOptions& options) const {
    std::vector<bf16> out;
    moe->forward(batch.into(out), options);
    const double difference = worst_difference(out, is_int8(on_isa.kernels->activation) ? expected : in_bf16);
    check(difference < 0.02, on_isa.name + " differs by " + std::to_string(difference) + " in " + format_name());
  }
  void check_submit(const NamedKernels& on_isa, const ForwardOptions& options) const {
    std::vector<bf16> called, submitted;
    MoE::Ticket ticket = MoE::submit(moe, batch.into(submitted), options);
    moe->forward(batch.into(called), options);
    ticket.wait();
    check(called == submitted, on_isa.name + " submitted is not forward in " + format_name());
  }

  std::string format_name() const { return traits_of(moe->experts().geometry().format).name; }
};

Scene random_scene(const Geometry& g, int domains, int tokens, int per_token, const Glu& glu) {
  Numbers numbers(g.hidden * 31 + tokens);
  const auto pool = std::make_shared<ThreadPool>(four_cpus(), brief);
  const auto moe = std::make_shared<MoE>(random_layer(numbers, g, domains, pool.get(), glu), pool);
  const Batch batch(numbers, g, tokens, per_token);
  return {moe, batch, expected_from(*moe, batch), expected_in_bf16(*moe, batch)};
}

void check_everywhere(const Geometry& sizes, int tokens, int per_token, const Glu& glu = {}) {
  for (const auto& [name, format, code] : format_table)
    for (const int domains : {1, 2}) {
      const Geometry g = geometry_in(format, sizes);
      if (g.intermediate <= (domains - 1) * format.depth_multiple()) continue;
      const Scene scene = random_scene(g, domains, tokens, per_token, glu);
      for (const NamedKernels& isa : granted_kernels(format))
        for (const bool dynamic : {false, true})
          for (const bool numa : {false, true}) {
            if (numa && domains == 1) continue;
            scene.check_forward(isa, on(*isa.kernels, dynamic, numa));
            scene.check_submit(isa, on(*isa.kernels, dynamic, numa));
          }
    }
}

// Sanitizers are slow, emulated tiles slower.
void check_large(const Geometry& sizes, int tokens, const Glu& glu = {}) {
  for (const auto& [name, format, code] : format_table) {
    const Scene scene = random_scene(geometry_in(format, sizes), 1, tokens, 1, glu);
    for (const NamedKernels& isa : granted_kernels(format)) scene.check_forward(isa, on(*isa.kernels, true));
  }
}

KTBENCH_TEST(products_in_float32_are_those_of_the_numbers_that_are_read) {
  std::vector<MultiplyStrip> all{multiply_strip_portable};
#ifdef __x86_64__
  if (granted("avx2")) all.push_back(multiply_strip_avx2);
#endif
  constexpr int tokens = 3;
  for (const FormatTraits& traits : format_table) {
    Numbers numbers(5);
    const Geometry g = geometry_in(traits.format, {1, 300, 48});
    PackedExperts packed(g, 1, {});
    write(packed, 0, random_expert(numbers, g), nullptr);
    const std::vector<float> weights = read(packed, 0, nullptr);
    const int depth = g.hidden_depth();
    std::vector<float> x(1ul * tokens * depth);
    for (int t = 0; t < tokens; ++t)
      for (int k = 0; k < g.hidden; ++k) x[t * depth + k] = widen(small_bf16(numbers));
    for (const MultiplyStrip multiply : all) {
      float out[tokens][strip_rows];
      multiply(packed.shards().front().gate_up(0), g.format, depth, x.data(), tokens, out);
      for (int t = 0; t < tokens; ++t)
        for (int row = 0; row < strip_rows; ++row) {
          double sum = 0, scale = 0;
          for (int k = 0; k < g.hidden; ++k) {
            const double product = double{weights[row * g.hidden + k]} * x[t * depth + k];
            sum += product, scale += std::fabs(product);
          }
          check(std::fabs(out[t][row] - sum) <= 1e-6 * scale, std::string(traits.name) + ": another sum");
        }
    }
  }
}

KTBENCH_TEST(one_token) { check_everywhere({4, 70, 140}, 1, 2); }
KTBENCH_TEST(few_tokens_ragged) { check_everywhere({3, 33, 17}, 7, 2); }
KTBENCH_TEST(blocks_of_every_height) {
  for (int tokens = 1; tokens <= 14; ++tokens) check_everywhere({1, 64, 32}, tokens, 1);
}
KTBENCH_TEST(one_by_one) { check_everywhere({1, 1, 1}, 2, 16); }
KTBENCH_TEST(many_tokens_on_one_expert) { check_large({1, 128, 64}, 300); }
KTBENCH_TEST(wide_tasks) { check_large({1, 2080, 48}, 256); }
KTBENCH_TEST(deep_pieces_of_tiles) { check_large({1, 80, 2080}, 40); }

constexpr Glu clamped{Act::silu, 1.702, 0.4, 1};
KTBENCH_TEST(gates_and_ups_with_biases_and_a_limit) { check_everywhere({3, 33, 140, {}, true}, 7, 2, clamped); }
KTBENCH_TEST(gelu_gates) { check_everywhere({2, 70, 40}, 5, 2, {.act = Act::gelu_tanh}); }
KTBENCH_TEST(many_rows_with_biases) { check_large({1, 128, 64, {}, true}, 300, clamped); }

KTBENCH_TEST(both_features_split_by_tokens) {
  if (!granted("avx512") || !granted("amx")) return;
  for (const auto& [name, format, code] : format_table) {
    if (!has_kernels("amx", format)) continue;
    Numbers numbers(7);
    const auto pool = std::make_shared<ThreadPool>(four_cpus(), brief);
    MoE moe(random_layer(numbers, geometry_in(format, {4, 96, 64}), 1, nullptr), pool);
    const Batch batch(numbers, moe.experts().geometry(), 23, 1);
    const std::vector<bf16> expected = expected_from(moe, batch);
    std::vector<bf16> out;
    const Kernels &few = fastest_of_feature("avx512", format), &many = kernels_of("amx", format);
    const KernelPair split{&few, &many, 6};
    moe.forward(batch.into(out), {split, split, true, false});
    const double allowed = is_int8(few.activation) == is_int8(many.activation) ? 0.02 : 0.04;
    check(worst_difference(out, expected) < allowed, std::string("the hybrid differs in ") + traits_of(format).name);
  }
}

// Each pair of neighbours in the table of formats, on every instruction set that has both.
KTBENCH_TEST(down_has_a_format_of_its_own) {
  for (int row = 0; row < format_count; ++row) {
    const Format &first = format_table[row].format, &second = format_table[(row + 1) % format_count].format;
    Numbers numbers(19);
    const auto pool = std::make_shared<ThreadPool>(four_cpus(), brief);
    const Geometry g{3, depth_in(first, 96), 2 * second.depth_multiple(), first, true, second};
    const auto packed = random_layer(numbers, g, 2, pool.get(), clamped);
    MoE moe(packed, pool);
    const Batch batch(numbers, g, 9, 2);
    const std::vector<bf16> expected = expected_in_bf16(moe, batch);
    for (const NamedKernels& isa : granted_kernels(first)) {
      if (!has_kernels(isa.name, second)) continue;
      const KernelPair gate_up{isa.kernels, isa.kernels, 0};
      const Kernels& own = kernels_of(isa.name, second);
      std::vector<bf16> out;
      moe.forward(batch.into(out), {gate_up, {&own, &own, 0}, true, true});
      const double difference = worst_difference(out, expected);
      check(difference < 0.05, isa.name + " differs by " + std::to_string(difference) + " in " +
                                   format_table[row].name + " and another");
    }
  }
}

// Nothing here may be undefined, whatever the numbers.
KTBENCH_TEST(numbers_that_are_none) {
  constexpr bf16 specials[] = {0x7fc0, 0xffc0, 0x7f80, 0xff80, 0x7f7f, 0xff7f, 0x0001, 0x8001, 0x0000, 0x8000};
  for (const auto& [name, format, code] : format_table) {
    Numbers numbers(3);
    const auto pool = std::make_shared<ThreadPool>(four_cpus(), brief);
    const Geometry g = geometry_in(format, {2, 70, 40});
    auto packed = std::make_shared<PackedExperts>(g, 1, std::vector<int>{});
    for (int e = 0; e < g.experts; ++e) {
      Expert expert = random_expert(numbers, g);
      for (auto* matrix : {&expert.gate, &expert.up, &expert.down})
        for (std::size_t i = 0; i < matrix->size(); i += 1 + numbers() % 5) (*matrix)[i] = specials[numbers() % 10];
      write(*packed, e, expert, pool.get());
    }
    read(*packed, 0, pool.get());
    MoE moe(packed, pool);
    Batch batch(numbers, g, 9, 2);
    for (bf16& x : batch.hidden)
      if (numbers() % 7 == 0) x = specials[numbers() % 10];
    batch.gates[3] = std::numeric_limits<float>::infinity();
    std::vector<bf16> out;
    for (const NamedKernels& isa : granted_kernels(format))
      moe.forward(batch.into(out), on(*isa.kernels, true));
  }
}

KTBENCH_TEST(tickets_run_in_order_and_may_be_dropped) {
  for (const bool own : {false, true}) {
    Numbers numbers(5);
    const auto pool = std::make_shared<ThreadPool>(four_cpus(), brief, own);
    const auto moe =
        std::make_shared<MoE>(random_layer(numbers, {3, 64, 64, format_named("int8")}, 1, pool.get()), pool);
    Batch batch(numbers, moe->experts().geometry(), 5, 2);
    const Kernels& kernels = reference_for(moe->experts());
    std::vector<std::vector<bf16>> chain(6), expected(6);
    Batch next = batch;
    for (auto& out : expected) {
      moe->forward(next.into(out), on(kernels));
      next.hidden = out;
    }
    std::vector<MoE::Ticket> tickets;
    for (std::size_t i = 0; i < chain.size(); ++i) {  // each reads what the one before it writes
      ForwardInputs inputs = batch.into(chain[i]);
      if (i > 0) inputs.hidden = chain[i - 1].data();
      tickets.push_back(MoE::submit(moe, inputs, on(kernels, true)));
    }
    tickets.back().wait();
    tickets.clear();
    check(chain == expected, "tickets ran out of order");
    check(moe->counters().flops == 12ull * 2 * 3 * 64 * 64 * 5 * 2, "calls counted other than once");
  }
}

KTBENCH_TEST(two_threads_call_and_submit) {
  Numbers numbers(11);
  const auto pool = std::make_shared<ThreadPool>(four_cpus(), brief);
  std::vector<std::shared_ptr<MoE>> moes;
  std::vector<Batch> batches;
  for (const Format& format : {Format{}, format_named("int4_g32")}) {
    moes.push_back(std::make_shared<MoE>(random_layer(numbers, {3, 64, 96, format}, 1, nullptr), pool));
    batches.emplace_back(numbers, moes.back()->experts().geometry(), 6, 2);
  }
  const std::vector<bf16> expected[] = {expected_from(*moes[0], batches[0]), expected_from(*moes[1], batches[1])};
  std::atomic<int> wrong{0};
  const auto hammer = [&](int me) {
    std::vector<bf16> called, submitted;
    for (int turn = 0; turn < 30; ++turn) {
      const int which = (me + turn) % 2;
      const ForwardOptions options = on(reference_for(moes[which]->experts()), turn % 3 == 0);
      MoE::Ticket ticket = MoE::submit(moes[which], batches[which].into(submitted), options);
      moes[which]->forward(batches[which].into(called), options);
      ticket.wait();
      wrong += called != expected[which] || submitted != expected[which];
    }
  };
  std::thread other(hammer, 1);
  hammer(0);
  other.join();
  check(wrong == 0, std::to_string(wrong) + " wrong outputs");
}

KTBENCH_TEST(saved_experts_are_mapped_back) {
  const std::string path = std::filesystem::temp_directory_path() / ("ktbench-moe-" + std::to_string(getpid()));
  for (const auto& [name, format, code] : format_table) {
    Numbers numbers(13);
    const auto pool = std::make_shared<ThreadPool>(four_cpus(), brief);
    const Geometry g = geometry_in(format, {2, 70, 40, {}, true});
    const auto packed = random_layer(numbers, g, 1, pool.get(), clamped);
    packed->save(path);
    const auto mapped = std::make_shared<PackedExperts>(PackedExperts::map(path));
    const Batch batch(numbers, packed->geometry(), 5, 2);
    MoE original(packed, pool), copy(mapped, pool);
    check(expected_from(original, batch) == expected_from(copy, batch), std::string("mapped experts differ in ") + traits_of(format).name);
    check_throws<std::logic_error>([&] { write(*mapped, 0, random_expert(numbers, packed->geometry()), nullptr); },
                                   "cannot be written");
    std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
    check_throws<std::runtime_error>([&] { PackedExperts::map(path); }, path);
  }
  std::filesystem::remove(path);
}

MoE one_small_layer(int domains, int threads) {
  const std::vector<int> cpus(threads, four_cpus().front());
  return {std::make_shared<PackedExperts>(Geometry{2, 32, 64}, domains, std::vector<int>{}),
          std::make_shared<ThreadPool>(cpus, brief)};
}

KTBENCH_TEST(an_id_out_of_range_is_named) {
  MoE moe = one_small_layer(1, 2);
  std::vector<bf16> rows(64);
  const std::int64_t ids[] = {0, 2};
  const float gates[] = {1, 1};
  check_throws<std::out_of_range>(
      [&] { moe.forward({rows.data(), {ids, gates, 2, 1}, rows.data()}, on(reference_for(moe.experts()))); },
      "expert id 2 of token 1 is not in 0..1");
}

KTBENCH_TEST(domains_without_threads_are_refused) {
  MoE moe = one_small_layer(2, 1);
  std::vector<bf16> rows(32);
  const std::int64_t id = 0;
  const float gate = 1;
  const ForwardOptions options = on(reference_for(moe.experts()), false, true);
  check_throws<std::invalid_argument>(
      [&] { moe.forward({rows.data(), {&id, &gate, 1, 1}, rows.data()}, options); },
      "2 domains need as many threads, the team has 1");
}

}  // namespace
}  // namespace ktbench::tests
