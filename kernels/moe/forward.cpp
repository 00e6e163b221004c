#include "moe/forward.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace ktbench {
namespace {

// A line more than whole tiles: rows at a power of two apart would share cache sets.
constexpr std::size_t row_skew = 32;

std::size_t padded_stride(int tiles) { return static_cast<std::size_t>(tiles) * tile_depth + row_skew; }

std::size_t padded_rows(int rows) { return round_up(rows, row_padding); }

const Kernels& chosen(const ForwardOptions& options, int count) {
  return count >= options.many_from ? *options.many : *options.few;
}

// Tile state and the like are set up on each thread for the length of its share of a phase.
class Entered {
 public:
  explicit Entered(const ForwardOptions& options) : options_(options) { options.few->enter(), options.many->enter(); }
  ~Entered() { options_.few->leave(), options_.many->leave(); }

 private:
  const ForwardOptions& options_;
};

std::uint64_t bytes_of(const Strips& strips) {
  return 1ull * strips.count * strips.tiles * tile_elements * sizeof(bf16);
}

int columns_within(int first, int count, int limit) { return std::clamp(limit - first, 0, count); }

}  // namespace

MoE::MoE(std::shared_ptr<PackedExperts> experts, std::shared_ptr<Team> team)
    : experts_(std::move(experts)),
      team_(std::move(team)),
      x_stride_(padded_stride(experts_->geometry().hidden_tiles())),
      h_stride_(padded_stride(experts_->geometry().intermediate_tiles())),
      gate_up_shares_(team_->threads()),
      down_shares_(team_->threads()),
      workers_(team_->threads()) {}

void MoE::forward(const bf16* hidden, const Routing& routing, bf16* out, const ForwardOptions& options) {
  if (routing.tokens == 0) return;
  const std::lock_guard turn(turn_);
  grouping_.arrange(routing, geometry().experts);
  const Call call{hidden, out, routing.tokens, options, cut_into_tasks(routing.tokens)};
  reserve_scratch(call);
  run_phases(call);
}

MoE::Cut MoE::cut_into_tasks(int tokens) const {
  // Small tasks to share evenly when each is short; wide ones when activations, which every task passes, are many.
  const int tasks_per_thread = tokens <= 64 ? 16 : 4;
  constexpr std::size_t sums_bytes = 1ul << 20;  // of the 1 to 2 MiB of L2
  const Geometry& g = geometry();
  // Weights are the stream while a few rows fit any cache; rows beyond L2 are the stream, and wider tasks pass them less.
  const std::size_t panel_bytes = 2ul * grouping_.largest() * g.hidden;
  const int gate_up_strips = grouping_.largest() <= 12 ? 2 : panel_bytes <= 1ul << 20 ? 4 : 16;
  const int fits = static_cast<int>(sums_bytes / sizeof(float) / tokens / strip_rows);
  const int wanted = std::min(fits, g.down_strips() / (team_->threads() * tasks_per_thread));
  const int down_strips = std::max(2, wanted / 2 * 2);
  return {gate_up_strips, (2 * g.gate_strips() + gate_up_strips - 1) / gate_up_strips, down_strips,
          (g.down_strips() + down_strips - 1) / down_strips};
}

void MoE::reserve_scratch(const Call& call) {
  h_.reserve(padded_rows(grouping_.slots() + row_padding) * h_stride_ * sizeof(bf16));
  for (Worker& worker : workers_) {
    worker.panel.reserve(padded_rows(grouping_.largest()) * x_stride_ * sizeof(bf16));
    worker.sums.reserve(1ul * call.tokens * call.cut.down_strips * strip_rows * sizeof(float));
    worker.gathered = -1;
  }
}

void MoE::run_phases(const Call& call) {
  const auto work = [&](Shares& shares, int thread, auto task) {
    const Entered entered(call.options);
    Worker& worker = workers_[thread];
    shares.work(thread, call.options.dynamic, worker.counters, [&](int i) { (this->*task)(call, i, worker); });
  };
  gate_up_shares_.deal(static_cast<int>(grouping_.active().size()) * call.cut.tasks_per_expert);
  down_shares_.deal(call.cut.down_tasks);
  const std::array<Team::Phase, 2> phases{
      [&](int thread) { work(gate_up_shares_, thread, &MoE::gate_up_task); },
      [&](int thread) { work(down_shares_, thread, &MoE::down_task); },
  };
  team_->run(phases);
}

void MoE::gate_up_task(const Call& call, int task, Worker& worker) {
  const Geometry& g = geometry();
  const int index = task / call.cut.tasks_per_expert;
  const Group& group = grouping_.active()[index];
  const int first = task % call.cut.tasks_per_expert * call.cut.gate_up_strips;
  const int strips = std::min(call.cut.gate_up_strips, 2 * g.gate_strips() - first);
  const bf16* weights = experts_->gate_up(group.expert) + 1ul * first * g.hidden_tiles() * tile_elements;
  const int column = first / 2 * strip_rows;
  const GateUp job{gathered_rows(call, index, worker), {weights, strips, g.hidden_tiles()},
                   h_row(group.first) + column, h_stride_, worker.scratch.as<float>()};
  chosen(call.options, group.count).gate_up(job, worker.counters);
  const int columns = columns_within(column, strips / 2 * strip_rows, g.intermediate);
  zero_padding(group, column + columns, column + strips / 2 * strip_rows);
  worker.counters.weight_bytes += bytes_of(job.weights);
  worker.counters.flops += 2ull * 2 * group.count * g.hidden * columns;
}

// Each thread gathers for itself, into its own cache, when its tasks move on to the next expert.
Rows MoE::gathered_rows(const Call& call, int index, Worker& worker) const {
  const Group& group = grouping_.active()[index];
  const Rows rows{worker.panel.as<bf16>(), x_stride_, group.count};
  if (std::exchange(worker.gathered, index) == index) return rows;
  const int hidden = geometry().hidden;
  bf16* to = worker.panel.as<bf16>();
  for (int r = 0; r < group.count; ++r, to += x_stride_) {
    std::memcpy(to, call.hidden + 1ul * *grouping_.token(group.first + r) * hidden, hidden * sizeof(bf16));
    std::fill(to + hidden, to + geometry().hidden_tiles() * tile_depth, bf16{0});
  }
  return rows;
}

// Padding columns are 0 * 0 unless a token holds an infinity: then they are NaN, and would spoil a finite product.
void MoE::zero_padding(const Group& group, int from, int to) const {
  for (int slot = group.first; from < to && slot < group.first + group.count; ++slot)
    std::fill(h_row(slot) + from, h_row(slot) + to, bf16{0});
}

void MoE::down_task(const Call& call, int task, Worker& worker) {
  const Geometry& g = geometry();
  const int first = task * call.cut.down_strips;
  const int strips = std::min(call.cut.down_strips, g.down_strips() - first);
  const int columns = strips * strip_rows;
  const std::size_t offset = 1ul * first * g.intermediate_tiles() * tile_elements;
  float* sums = worker.sums.as<float>();
  std::fill_n(sums, 1ul * call.tokens * columns, 0.0f);
  for (const Group& group : grouping_.active()) {
    const Down job{{h_row(group.first), h_stride_, group.count},
                   {experts_->down(group.expert) + offset, strips, g.intermediate_tiles()},
                   grouping_.token(group.first), grouping_.gate(group.first), sums, static_cast<std::size_t>(columns),
                   worker.scratch.as<float>()};
    chosen(call.options, group.count).down(job, worker.counters);
    worker.counters.weight_bytes += bytes_of(job.weights);
    worker.counters.flops +=
        2ull * group.count * g.intermediate * columns_within(first * strip_rows, columns, g.hidden);
  }
  round_columns(call, first * strip_rows, columns, sums);
}

void MoE::round_columns(const Call& call, int column, int columns, const float* sums) const {
  const int kept = columns_within(column, columns, geometry().hidden);
  for (int t = 0; t < call.tokens; ++t)
    call.options.few->round(sums + 1ul * t * columns, call.out + 1ul * t * geometry().hidden + column, kept);
}

Counters MoE::counters() {
  const std::lock_guard turn(turn_);
  Counters sum;
  for (const Worker& worker : workers_) {
    const Counters& c = worker.counters;
    sum.reference_calls += c.reference_calls;
    sum.avx2_calls += c.avx2_calls;
    sum.avx512_calls += c.avx512_calls;
    sum.amx_tiles += c.amx_tiles;
    sum.emulated_tiles += c.emulated_tiles;
    sum.tasks_static += c.tasks_static;
    sum.tasks_dynamic += c.tasks_dynamic;
    sum.tasks_stolen += c.tasks_stolen;
    sum.weight_bytes += c.weight_bytes;
    sum.flops += c.flops;
  }
  return sum;
}

}  // namespace ktbench
