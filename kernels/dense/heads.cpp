#include "dense/heads.h"

#include <algorithm>

namespace ktbench {
namespace {

constexpr std::int64_t min_team_numbers = 64 << 10;  // what one thread does during a team's barrier

// body(row) for every one of `rows` rows of `numbers` numbers.
template <class Body>
void for_rows(int rows, std::int64_t numbers, Team* team, Body body) {
  const auto work = [&](std::int64_t part, std::int64_t parts) {
    for (std::int64_t row = rows * part / parts; row < rows * (part + 1) / parts; ++row) body(row);
  };
  if (!team || rows * numbers < min_team_numbers) return work(0, 1);
  team->run([&](int thread) { work(thread, team->threads()); });
}

void prepare_head(const bf16* from, int size, const Norm& norm, const Rotation& rotation, const RowKernels& kernels,
                  bf16* to) {
  norm.weight ? kernels.norm(from, size, norm, to) : static_cast<void>(std::copy_n(from, size, to));
  kernels.rotate(rotation, to);
}

void prepare_sequence(const HeadsCall& c, std::int64_t b, const RowKernels& kernels) {
  const Rotation rotation{c.cos[b], c.sin[b], c.rotated};
  const bf16* from = c.qkv[b];
  for (int h = 0; h < c.query_heads; ++h, from += c.size)
    prepare_head(from, c.size, c.q_norm, rotation, kernels, c.q_out[b] + h * c.size);
  for (int h = 0; h < c.key_heads; ++h, from += c.size)
    prepare_head(from, c.size, c.k_norm, rotation, kernels, c.keys.at(b, h, c.position[b]));
  for (int h = 0; h < c.key_heads; ++h, from += c.size) std::copy_n(from, c.size, c.values.at(b, h, c.position[b]));
}

}  // namespace

void rms_norm(RowsOf<const bf16> x, int rows, int count, const Norm& norm, RowsOf<bf16> out, const RowKernels& kernels,
              Team* team) {
  for_rows(rows, count, team, [&](std::int64_t row) { kernels.norm(x[row], count, norm, out[row]); });
}

void prepare_heads(const HeadsCall& call, const RowKernels& kernels, Team* team) {
  const std::int64_t numbers = std::int64_t{1} * (call.query_heads + 2 * call.key_heads) * call.size;
  for_rows(call.sequences, numbers, team, [&](std::int64_t b) { prepare_sequence(call, b, kernels); });
}

}  // namespace ktbench
