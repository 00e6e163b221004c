#include "linear/linear.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

#include "runtime/isa.h"
#include "runtime/of_team.h"

namespace ktbench {
namespace {

constexpr int few_tokens = 24;             // up to this many, weights are streamed
constexpr int most_block_tokens = 256;     // their activations fit in L2, or nearly, with a task's weights
constexpr int most_own_numbers = 8 << 10;  // of activations that each thread prepares for itself: 1 us

std::size_t padded_rows(int rows) { return round_up(rows, row_padding) + row_padding; }

constexpr std::size_t whole_lines(std::size_t bytes) { return (bytes + line_bytes - 1) / line_bytes * line_bytes; }

int blocks_of(int n, int size) { return (n + size - 1) / size; }

int multiple_within(int n, int multiple, int most) { return std::clamp(n / multiple * multiple, multiple, most); }

// Row r of a block is added, once, to row r of its sums.
template <class T, T step>
constexpr std::array<T, most_block_tokens> counting_from(T first) {
  std::array<T, most_block_tokens> all{};
  for (T& x : all) x = std::exchange(first, first + step);
  return all;
}
constexpr auto same_row = counting_from<int, 1>(0);
constexpr auto gate_of_one = counting_from<float, 0.0f>(1);

}  // namespace

// Consecutive, each on separate cache lines.
struct Linear::Buffers {
  float* sums;
  std::byte* scratch;
  std::byte* rows;
  std::byte* end;
};

Linear::Linear(std::shared_ptr<PackedMatrix> weights, std::shared_ptr<Team> team, const std::vector<float>& bias)
    : weights_(std::move(weights)), team_(std::move(team)), workspace_(of_team<Workspace>(*team_)), bias_(bias) {
  if (!bias.empty() && static_cast<int>(bias.size()) != weights_->rows())
    throw std::invalid_argument("bias has " + std::to_string(bias.size()) + " numbers for " +
                                std::to_string(weights_->rows()) + " rows");
  bias_.resize(weights_->strips() * strip_rows);
  phases_.emplace_back([this](int thread) { prepare(thread); });
  phases_.emplace_back([this](int thread) { multiply(thread); });
}

void Linear::forward(const bf16* x, int tokens, bf16* out, const Kernels& kernels) {
  if (tokens == 0) return;
  team_->check_process();
  const std::lock_guard lock(workspace_->lock);
  call_ = plan(x, tokens, out, kernels);
  reserve();
  workspace_->tasks.assign(tasks());
  team_->run(std::span(phases_).last(call_.own_rows ? 1 : 2));
  collect();
  weights_->check_file();
}

// Blocks depend only on the number of tokens, since few and many rows are summed in different orders.
Linear::Call Linear::plan(const bf16* x, int tokens, bf16* out, const Kernels& kernels) const {
  const RowFormat format{kernels.activation, weights_->depth(), weights_->format().minima_group()};
  const bool own_rows = tokens == 1 || tokens <= most_own_numbers / weights_->columns();
  const int even = blocks_of(tokens, blocks_of(tokens, most_block_tokens));
  const int block_tokens = tokens <= most_block_tokens ? tokens : round_up(even, row_padding);
  const int blocks = blocks_of(tokens, block_tokens);
  return {x, tokens, out, &kernels, format, own_rows, block_tokens, blocks, strips_per_task(tokens, blocks)};
}

// Small tasks, for even sharing, if each is short; more strips if every task processes many rows.
int Linear::strips_per_task(int tokens, int blocks) const {
  if (tokens <= few_tokens) return multiple_within(weights_->strips() / (16 * team_->threads()), 2, 64);
  return multiple_within(weights_->strips() * blocks / (4 * team_->threads()), 4, 16);
}

int Linear::tasks() const { return blocks_of(weights_->strips(), call_.strips) * call_.blocks; }

Linear::Buffers Linear::buffers(std::byte* memory) const {
  const Geometry geometry{1, weights_->columns(), weights_->columns(), weights_->format()};
  const std::size_t sums = 1ul * call_.block_tokens * call_.strips * strip_rows * sizeof(float);
  std::byte* const scratch = memory + whole_lines(sums);
  std::byte* const rows = scratch + whole_lines(scratch_bytes(geometry));
  const std::size_t rows_bytes = call_.own_rows ? padded_rows(call_.tokens) * call_.format.bytes() : 0;
  return {reinterpret_cast<float*>(memory), scratch, rows, rows + rows_bytes};
}

void Linear::reserve() {
  if (!call_.own_rows) workspace_->rows.reserve(padded_rows(call_.tokens) * call_.format.bytes());
  const std::size_t bytes = buffers(nullptr).end - static_cast<std::byte*>(nullptr);
  for (Workspace::Worker& worker : workspace_->workers) worker.buffers.reserve(bytes);
}

void Linear::prepare_rows(int begin, int end, std::byte* to) const {
  const int columns = weights_->columns();
  for (int t = begin; t < end; ++t)
    call_.kernels->prepare(call_.x + 1ul * t * columns, columns, call_.format, to + t * call_.format.bytes());
}

void Linear::prepare(int thread) {
  const auto begins = [&](std::int64_t share) { return static_cast<int>(call_.tokens * share / team_->threads()); };
  prepare_rows(begins(thread), begins(thread + 1), workspace_->rows.as<>());
}

// Tile state and the like are set up on each thread for the length of its share.
void Linear::multiply(int thread) {
  Workspace::Worker& worker = workspace_->workers[thread];
  const Buffers mine = buffers(worker.buffers.as<>());
  if (call_.own_rows) prepare_rows(0, call_.tokens, mine.rows);
  call_.kernels->enter();
  workspace_->tasks.work(thread, true, worker.counters, [&](int number) { task(number, mine, worker.counters); });
  call_.kernels->leave();
}

void Linear::task(int number, const Buffers& buffers, Counters& counters) const {
  const int block = number % call_.blocks, first = number / call_.blocks * call_.strips;
  const int strips = std::min(call_.strips, weights_->strips() - first), columns = strips * strip_rows;
  const int token = block * call_.block_tokens, tokens = std::min(call_.block_tokens, call_.tokens - token);
  const int column = first * strip_rows, kept = std::clamp(weights_->rows() - column, 0, columns);
  const Strips w = strips_of(first, strips, block + 1 == call_.blocks);
  for (int t = 0; t < tokens; ++t) std::copy_n(bias_.data() + column, columns, buffers.sums + 1ul * t * columns);
  call_.kernels->down({rows_of(token, tokens, buffers), w, same_row.data(), gate_of_one.data(), buffers.sums,
                       static_cast<std::size_t>(columns), buffers.scratch},
                      counters);
  for (int t = 0; t < tokens; ++t)
    call_.kernels->round(buffers.sums + 1ul * t * columns, call_.out + 1ul * (token + t) * weights_->rows() + column,
                         kept);
  counters.weight_bytes += block ? 0 : strips * w.bytes;
  counters.flops += 2ull * tokens * weights_->columns() * kept;
}

Rows Linear::rows_of(int first, int count, const Buffers& buffers) const {
  const RowFormat& format = call_.format;
  const std::byte* rows = call_.own_rows ? buffers.rows : workspace_->rows.as<>();
  return {rows + first * format.bytes(), format.bytes(), format.scale_at(), count};
}

// `following` is the next task's: the blocks of tokens use the same weights in turn, in L2 from the second on.
Strips Linear::strips_of(int first, int count, bool last_block) const {
  const std::byte* data = weights_->strip(first);
  return {data, count, weights_->depth(), weights_->strip_bytes(), weights_->format(), call_.kernels->crossover,
          last_block ? weights_->strip(first + count) : data};
}

void Linear::collect() {
  ++counted_.calls;
  for (Workspace::Worker& worker : workspace_->workers) counted_.kernels += std::exchange(worker.counters, {});
}

LinearCounters Linear::counters() {
  const std::lock_guard lock(workspace_->lock);
  return counted_;
}

}  // namespace ktbench
