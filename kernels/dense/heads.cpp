#include "dense/heads.h"

#include "runtime/memory.h"

#include <algorithm>

namespace ktbench {
namespace {

constexpr std::int64_t min_team_numbers = 64 << 10;  // one thread's work during a team's barrier
constexpr int least_piece = 64;                      // outputs of a head that a thread computes at once

// body(row) for each of `rows` rows of `numbers` numbers.
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
  const std::int64_t row = c.page ? c.page[b] : b;
  for (int h = 0; h < c.query_heads; ++h, from += c.size)
    prepare_head(from, c.size, c.q_norm, rotation, kernels, c.q_out[b] + h * c.size);
  for (int h = 0; h < c.key_heads; ++h, from += c.size)
    prepare_head(from, c.size, c.k_norm, rotation, kernels, c.keys.at(row, h, c.position[b]));
  for (int h = 0; h < c.key_heads; ++h, from += c.size) std::copy_n(from, c.size, c.values.at(row, h, c.position[b]));
}

// Outputs first <= i < end of one head.
void multiply_piece(const HeadsProduct& c, int head, int first, int end, const AttentionKernels& kernels) {
  thread_local HugeBuffer scratch;
  HeadProduct job{c.weights.at(0, head, c.transposed ? 0 : first) + (c.transposed ? first : 0), c.weights.stride,
                  c.transposed ? c.rows : end - first, c.transposed ? end - first : c.size, c.x.at(0, head, 0),
                  c.x.sequence_stride, c.sequences, c.out.at(0, head, 0) + first, c.out.sequence_stride, nullptr};
  scratch.reserve(attend_scratch_bytes(job.sequences, job.size, job.size));
  job.scratch = scratch.as<std::byte>();
  (c.transposed ? kernels.multiply_transposed : kernels.multiply)(job);
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

// Heads are split only if there are too few: pieces of columns are read in short stretches.
void multiply_heads(const HeadsProduct& call, const AttentionKernels& kernels, Team& team) {
  const int size = call.out_size(), threads = team.threads();
  const int wanted = call.heads >= 4 * threads ? 1 : (4 * threads + call.heads - 1) / call.heads;
  const int pieces = std::clamp(size / least_piece, 1, wanted);
  const std::int64_t tasks = std::int64_t{1} * call.heads * pieces;
  const auto cut = [&](std::int64_t piece) {
    return piece == pieces ? size : static_cast<int>(size * piece / pieces / least_piece * least_piece);
  };
  team.run([&](int thread) {
    for (std::int64_t i = tasks * thread / threads; i < tasks * (thread + 1) / threads; ++i)
      multiply_piece(call, static_cast<int>(i / pieces), cut(i % pieces), cut(i % pieces + 1), kernels);
  });
}

}  // namespace ktbench
