// Linear layers at every precision, on every granted ISA and of every height, against float sums of the weights as they
// are stored, and from several threads at once. Whether quantising is right is the Python tests' question.
#include "linear/linear.h"

#include <cmath>
#include <random>
#include <thread>

#include "runtime/isa.h"
#include "runtime/pool.h"
#include "tests/check.h"
#include "tests/cpus.h"
#include "tests/formats.h"

namespace ktbench::tests {
namespace {

float widen(bf16 x) { return __builtin_bit_cast(float, static_cast<std::uint32_t>(x) << 16); }

std::vector<bf16> random_numbers(std::mt19937& random, std::size_t count) {  // +-[2^-4, 2^-2)
  std::vector<bf16> numbers(count);
  for (bf16& x : numbers) x = static_cast<bf16>((random() & 1) << 15 | (123 + random() % 2) << 7 | (random() & 127));
  return numbers;
}

struct Layer {
  std::shared_ptr<PackedMatrix> matrix;
  std::vector<float> weights, bias;  // as stored

  Layer(std::mt19937& random, int rows, int columns, const Format& format, Team* team)
      : matrix(std::make_shared<PackedMatrix>(rows, columns, format)), weights(std::size_t{1} * rows * columns) {
    const std::vector<bf16> numbers = random_numbers(random, weights.size());
    if (format.has_supers()) {
      const std::vector<std::byte> blocks = blocks_of(numbers, format);
      const std::size_t bytes = format.block_bytes();
      matrix->write(BlockView{blocks.data(), columns / format.group * bytes, bytes, format.group}, 0, rows, team);
    } else {
      matrix->write(MatrixView{numbers.data(), static_cast<std::size_t>(columns)}, 0, rows, team);
    }
    matrix->read({weights.data(), static_cast<std::size_t>(columns)}, team);
    for (const bf16 x : random_numbers(random, rows)) bias.push_back(widen(x));
  }
};

// int8 activations are 1/254 of the largest off, each.
void check_output(const Layer& layer, const std::vector<bf16>& x, const std::vector<bf16>& out) {
  const int rows = layer.matrix->rows(), columns = layer.matrix->columns();
  const bool exact = layer.matrix->format() == Format{};
  for (std::size_t i = 0; i < out.size(); ++i) {
    const bf16* of_token = x.data() + i / rows * columns;
    const float* weight = layer.weights.data() + i % rows * columns;
    double sum = layer.bias[i % rows], size = 0;
    for (int k = 0; k < columns; ++k) sum += widen(of_token[k]) * weight[k], size += std::abs(weight[k]);
    const double tolerance = std::abs(sum) / 256 + size * (exact ? 1e-5 : 0.25 / 254) + 1e-6;
    check(std::abs(widen(out[i]) - sum) <= tolerance, "element " + std::to_string(i) + " is off");
  }
}

void check_forward(std::mt19937& random, Linear& linear, const Layer& layer, int tokens, const Kernels& kernels) {
  const std::vector<bf16> x = random_numbers(random, std::size_t{1} * tokens * layer.matrix->columns());
  std::vector<bf16> out(std::size_t{1} * tokens * layer.matrix->rows(), 0x7fc0);
  linear.forward(x.data(), tokens, out.data(), kernels);
  check_output(layer, x, out);
}

std::shared_ptr<ThreadPool> four_threads() { return std::make_shared<ThreadPool>(four_cpus(), brief); }

}  // namespace

KTBENCH_TEST(linear_layers_of_every_precision_on_every_isa) {
  std::mt19937 random(1);
  const auto pool = four_threads();
  for (const auto& [name, format, code] : format_table) {
    const Layer layer(random, 70, format.has_blocks() ? round_up(160, format.group) : 130, format, pool.get());
    Linear linear(layer.matrix, pool, layer.bias);
    for (const NamedKernels& isa : granted_kernels(format))
      for (const int tokens : {1, 2, 13, 33, 70, 270}) check_forward(random, linear, layer, tokens, *isa.kernels);
  }
}

KTBENCH_TEST(linear_layers_of_one_team_from_several_threads) {
  const auto pool = four_threads();
  const auto work = [&](unsigned seed, const Format& format) {
    std::mt19937 random(seed);
    const Layer layer(random, 40 + static_cast<int>(seed), 64, format, pool.get());
    Linear linear(layer.matrix, pool, layer.bias);
    for (int i = 0; i < 20; ++i)
      check_forward(random, linear, layer, 1 + i * 5, fastest_kernels(format, 1 + i * 5));
  };
  std::jthread first(work, 2, Format{}), second(work, 3, format_named("int8")), third(work, 4, format_named("int4_g32"));
}

KTBENCH_TEST(a_matrix_refuses_rows_that_do_not_fit) {
  PackedMatrix matrix(40, 8, {});
  const std::vector<bf16> rows(48 * 8);
  matrix.write({rows.data(), 8}, 16, 24, nullptr);
  check_throws<std::invalid_argument>([&] { matrix.write({rows.data(), 8}, 0, 48, nullptr); }, "not all in 0..39");
  check_throws<std::invalid_argument>([&] { matrix.write({rows.data(), 8}, 0, 24, nullptr); }, "a multiple of 16");
  check_throws<std::invalid_argument>([&] { matrix.write({rows.data(), 8}, 8, 32, nullptr); }, "a multiple of 16");
}

}  // namespace ktbench::tests
