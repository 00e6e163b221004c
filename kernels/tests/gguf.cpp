// GGUF's blocks become strips, and half precision is what IEEE 754 says. Whether quantising is that of ggml is the
// Python tests' question.
#include "moe/gguf.h"

#include <cmath>
#include <cstring>
#include <random>

#include "core/format_names.h"
#include "core/half.h"
#include "moe/experts.h"
#include "runtime/pool.h"
#include "tests/check.h"
#include "tests/cpus.h"

namespace ktbench::tests {
namespace {

const Format q8_0 = format_named("q8_0"), q4_0 = format_named("q4_0");

std::vector<std::byte> random_blocks(std::mt19937& numbers, const Format& format, int rows, int columns) {
  std::vector<std::byte> bytes(std::size_t{1} * rows * columns / block_depth * format.block_bytes());
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(numbers());
  for (std::size_t at = 1; at < bytes.size(); at += format.block_bytes())
    bytes[at] = static_cast<std::byte>(0x2c | (numbers() & 0x80));  // scales of +-[2^-4, 2^-3)
  return bytes;
}

// Gate, up and down, one after the other.
std::vector<float> read(const PackedExperts& packed, Team* team) {
  const auto hidden = static_cast<std::size_t>(packed.geometry().hidden);
  const auto intermediate = static_cast<std::size_t>(packed.geometry().intermediate);
  const std::size_t elements = hidden * intermediate;
  std::vector<float> all(3 * elements);
  float* const up = all.data() + elements;
  packed.read(0, {all.data(), hidden}, {up, hidden}, {up + elements, intermediate}, team);
  return all;
}

KTBENCH_TEST(blocks_become_strips_of_the_same_numbers) {
  for (const Format& format : {q8_0, q4_0}) {
    std::mt19937 numbers(17);
    const auto pool = std::make_shared<ThreadPool>(four_cpus(), brief);
    const Geometry g{1, 96, 160, format};
    const std::size_t bytes = format.block_bytes();
    const std::vector<std::byte> up = random_blocks(numbers, format, g.intermediate, g.hidden);
    const std::vector<std::byte> down = random_blocks(numbers, format, g.hidden, g.intermediate);
    PackedExperts one(g, 1, {}), two(g, 2, {});
    const BlockView ups{up.data(), g.hidden / block_depth * bytes, bytes};
    const BlockView downs{down.data(), g.intermediate / block_depth * bytes, bytes};
    one.write(0, ups, ups, downs, nullptr);
    two.write(0, ups, ups, downs, pool.get());
    const std::vector<float> back = read(one, pool.get());
    check(back == read(two, pool.get()), "domains hold other numbers");
    const bool bytewise = format == q8_0;
    const int first = bytewise ? static_cast<std::int8_t>(up[2]) : (static_cast<int>(up[2]) & 15) - 8;
    half scale;
    std::memcpy(&scale, up.data(), sizeof scale);
    check(back.front() == float_of_half(scale) * static_cast<float>(first), "the first weight is another");
  }
}

KTBENCH_TEST(halves_are_rounded_to_even) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const half x = static_cast<half>(bits);
    const float wide = float_of_half(x);
    check(std::isnan(wide) || half_of_float(wide) == x, "half " + std::to_string(bits) + " does not come back");
  }
  const float between[] = {0x1p-25f, 0x1.8p-24f, 0x1.002p0f, 0x1.006p0f, 65519.0f, 65520.0f};
  const half rounded[] = {0x0000, 0x0002, 0x3c00, 0x3c02, 0x7bff, 0x7c00};
  for (int i = 0; i < 6; ++i) check(half_of_float(between[i]) == rounded[i], "a tie goes elsewhere");
}

KTBENCH_TEST(sizes_that_are_no_whole_blocks_are_refused) {
  check_throws<std::invalid_argument>([] { PackedExperts({1, 48, 64, q8_0}, 1, {}); },
                                      "hidden=48 must be a multiple of 32");
  check_throws<std::invalid_argument>([] { PackedExperts({1, 64, 72, q4_0}, 1, {}); },
                                      "intermediate=72 must be a multiple of 32");
}

}  // namespace
}  // namespace ktbench::tests
