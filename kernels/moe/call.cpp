#include "moe/call.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

#include "runtime/isa.h"

namespace ktbench {
namespace {

std::size_t padded_rows(int rows) { return round_up(rows, row_padding) + row_padding; }

// Tile state and the like are set up on each thread for the length of its part of a phase.
class TileScope {
 public:
  explicit TileScope(const KernelPair& kernels) : kernels_(kernels) { kernels.few->enter(), kernels.many->enter(); }
  ~TileScope() { kernels_.few->leave(), kernels_.many->leave(); }

 private:
  const KernelPair& kernels_;
};

int columns_within(int first, int count, int limit) { return std::clamp(limit - first, 0, count); }

// Contiguous part `part` of `parts` of n items.
std::pair<int, int> part_of(int n, int part, int parts) {
  return {static_cast<int>(std::int64_t{n} * part / parts), static_cast<int>(std::int64_t{n} * (part + 1) / parts)};
}

// None for plain SwiGLU without biases, which the kernels compute by default.
std::optional<Gating> gating_for(const PackedExperts& experts) {
  if (experts.glu() == Glu{} && !experts.geometry().biases) return std::nullopt;
  return gating_of(experts.glu());
}

const float* from_column(const float* biases, int column) { return biases ? biases + column : nullptr; }

}  // namespace

std::size_t scratch_bytes(const Geometry& g) {
  // AMX keeps sums of 256 rows x 16 strips, the others fewer; in addition unpacked weights, at most two whole strips.
  constexpr std::size_t sums = 256ul * 16 * strip_rows * sizeof(float);
  const int depth = round_up(std::max(g.hidden_depth(), g.intermediate_depth()), 64);
  std::size_t widest = 32ul << 10;
  for (const FormatTraits& traits : format_table)
    widest = std::max(widest, traits.format.widened().strip_bytes(traits.format.widened().padded_depth(depth)));
  return sums + 2 * widest;
}

Call::Call(const PackedExperts& experts, int threads)
    : geometry_(experts.geometry()), workers_(threads), parts_(experts.shards().size()) {
  for (Worker& worker : workers_) worker.scratch.reserve(scratch_bytes(geometry_));
}

// Shards depend only on geometry and number.
bool Call::fits(const PackedExperts& experts) const {
  return geometry_ == experts.geometry() && parts_.size() == experts.shards().size();
}

void Call::bind(const PackedExperts& experts) {
  gating_ = gating_for(experts);
  for (std::size_t p = 0; p < parts_.size(); ++p) parts_[p].shard = &experts.shards()[p];
}

void Call::prepare(const PackedExperts& experts, const ForwardInputs& inputs, const ForwardOptions& options) {
  bind(experts);
  if (options.numa && threads() < domains())
    throw std::invalid_argument(std::to_string(domains()) + " domains need as many threads, the team has " +
                                std::to_string(threads()));
  inputs_ = inputs;
  options_ = options;
  grouping_.arrange(inputs.routing, geometry_.experts);
  note_used_kernels();
  sizes_ = size_tasks();
  reserve();
  partition();
  build_phases();
}

const Kernels& Call::gate_up_kernels(const Group& group) const { return options_.gate_up.for_tokens(group.count); }
const Kernels& Call::down_kernels(const Group& group) const { return options_.down.for_tokens(group.count); }

void Call::note_used_kernels() {
  std::fill(std::begin(used_), std::end(used_), false);
  converts_h_ = false;
  for (const Group& group : grouping_.active()) {
    used_[static_cast<int>(gate_up_kernels(group).activation)] = true;
    converts_h_ = converts_h_ || down_kernels(group).activation != Activation::bf16;
  }
}

// u8 and s16 rows are read in whole tiles or groups, as the weights are padded.
RowFormat Call::x_format(Activation kind) const {
  return {kind, geometry_.hidden_depth(), geometry_.format.minima_group()};
}
RowFormat Call::h_format(Activation kind, const Part& part) const {
  return {kind, part.shard->geometry.intermediate_depth(), part.shard->geometry.down_format().minima_group()};
}
RowFormat Call::largest_h_format(const Part& part) const { return h_format(Activation::f32, part); }

// The same for all shards, by the one with the most strips.
Call::TaskSizes Call::size_tasks() const {
  // Every task visits all experts: more tasks than this start more streams and read activations more often.
  constexpr int tasks_per_thread = 4;
  const int tokens = inputs_.routing.tokens;
  constexpr std::size_t sums_bytes = 1ul << 20;  // of the 1 to 2 MiB of L2
  const Geometry& g = geometry_;
  int gate_strips = 0;
  for (const Part& part : parts_) gate_strips = std::max(gate_strips, part.shard->geometry.gate_strips());
  // Rows beyond L2 are read again in every task: wider tasks read them less often.
  const std::size_t panel_bytes = 2ul * grouping_.largest() * g.hidden;
  const int gate_up_strips = panel_bytes <= 1ul << 20 ? 4 : 16;
  const int fits = static_cast<int>(sums_bytes / sizeof(float) / tokens / strip_rows);
  const int wanted = std::min(fits, g.down_strips() / (threads() * tasks_per_thread));
  const int down_strips = std::max(2, wanted / 2 * 2);
  return {gate_up_strips, (2 * gate_strips + gate_up_strips - 1) / gate_up_strips, down_strips,
          (g.down_strips() + down_strips - 1) / down_strips};
}

void Call::reserve() {
  const int tokens = inputs_.routing.tokens;
  std::size_t x_row = 0;
  for (int kind = 0; kind < activations; ++kind) {
    if (!used_[kind]) continue;
    const RowFormat format = x_format(static_cast<Activation>(kind));
    x_[kind].reserve(padded_rows(tokens) * format.bytes());
    x_row = std::max(x_row, format.bytes());
  }
  for (std::size_t p = 0; p < parts_.size(); ++p) {
    Part& part = parts_[p];
    part.h.reserve(padded_rows(grouping_.slots()) * h_format(Activation::bf16, part).bytes());
    part.prepared.reserve(padded_rows(grouping_.slots()) * largest_h_format(part).bytes());
    if (domains() > 1) part.sums.reserve(1ul * tokens * geometry_.down_strips() * strip_rows * sizeof(float));
  }
  const int widest = sizes_.down_strips * strip_rows;
  for (Worker& worker : workers_) {
    worker.panel.reserve(padded_rows(grouping_.largest()) * x_row);
    if (domains() == 1) worker.sums.reserve(1ul * tokens * widest * sizeof(float));
    worker.gathered = -1;
  }
}

// Without numa, tasks of the domains alternate, so that all memories are read at any time.
void Call::partition() {
  const int gate_up = static_cast<int>(grouping_.active().size()) * sizes_.tasks_per_expert;
  const bool apart = options_.numa && domains() > 1;
  gate_up_tasks_.clear(), down_tasks_.clear();
  for (int d = 0; d < (apart ? domains() : 1); ++d) {
    const int team = apart ? first_thread(d + 1, threads(), domains()) - first_thread(d, threads(), domains()) : threads();
    gate_up_tasks_.emplace_back(team).assign(gate_up * (apart ? 1 : domains()));
    down_tasks_.emplace_back(team).assign(sizes_.down_tasks * (apart ? 1 : domains()));
  }
}

void Call::build_phases() {
  phases_.clear();
  phases_.emplace_back([this](int thread) { prepare_x(thread); });
  phases_.emplace_back([this](int thread) { work(gate_up_tasks_, thread, options_.gate_up, &Call::gate_up_task); });
  if (converts_h_) phases_.emplace_back([this](int thread) { prepare_h(thread); });
  phases_.emplace_back([this](int thread) { work(down_tasks_, thread, options_.down, &Call::down_task); });
  if (domains() > 1) phases_.emplace_back([this](int thread) { reduce(thread); });
}

void Call::prepare_x(int thread) {
  const auto [begin, end] = part_of(inputs_.routing.tokens, thread, threads());
  for (int kind = 0; kind < activations; ++kind) {
    if (!used_[kind]) continue;
    const RowFormat format = x_format(static_cast<Activation>(kind));
    for (int t = begin; t < end; ++t)
      options_.gate_up.few->prepare(inputs_.hidden + 1ul * t * geometry_.hidden, geometry_.hidden, format,
                            x_[kind].as<>() + t * format.bytes());
  }
}

void Call::prepare_h(int thread) {
  for (int d = 0; d < domains(); ++d) {
    const Part& part = parts_[d];
    const int begins = options_.numa ? first_thread(d, threads(), domains()) : 0;
    const int ends = options_.numa ? first_thread(d + 1, threads(), domains()) : threads();
    if (thread < begins || thread >= ends) continue;
    const auto [begin, end] = part_of(grouping_.slots(), thread - begins, ends - begins);
    const std::size_t h_bytes = h_format(Activation::bf16, part).bytes();
    for (const Group& group : grouping_.active()) {
      const RowFormat format = h_format(down_kernels(group).activation, part);
      if (format.kind == Activation::bf16) continue;
      std::byte* to = h_begin(part, group);
      for (int slot = std::max(begin, group.first); slot < std::min(end, group.first + group.count); ++slot)
        down_kernels(group).prepare(reinterpret_cast<const bf16*>(part.h.as<>() + slot * h_bytes),
                                   part.shard->geometry.intermediate, format, to + (slot - group.first) * format.bytes());
    }
  }
}

// A group's rows are written side by side, where rows of the largest format would begin.
std::byte* Call::h_begin(const Part& part, const Group& group) const {
  if (down_kernels(group).activation == Activation::bf16)
    return part.h.as<>() + group.first * h_format(Activation::bf16, part).bytes();
  return part.prepared.as<>() + group.first * largest_h_format(part).bytes();
}

Rows Call::h_rows(const Part& part, const Group& group) const {
  const RowFormat format = h_format(down_kernels(group).activation, part);
  return {h_begin(part, group), format.bytes(), format.scale_at(), group.count};
}

void Call::work(std::vector<TaskPartition>& tasks, int thread, const KernelPair& kernels,
                void (Call::*task)(Part&, int, Worker&)) {
  const TileScope scope(kernels);
  Worker& worker = workers_[thread];
  const int mine = domain_of(thread, threads(), domains());
  const bool apart = tasks.size() > 1;
  const auto run = [&](int domain, int task_number) {
    const std::uint64_t before = worker.counters.weight_bytes;
    (this->*task)(parts_[domain], task_number, worker);
    const std::uint64_t read = worker.counters.weight_bytes - before;
    if (options_.numa && domain == mine) worker.counters.local_bytes += read;
    if (domain != mine) worker.counters.remote_bytes += read;
  };
  if (apart)
    tasks[mine].work(thread - first_thread(mine, threads(), domains()), options_.dynamic, worker.counters,
                      [&](int i) { run(mine, i); });
  else
    tasks.front().work(thread, options_.dynamic, worker.counters, [&](int i) { run(i % domains(), i / domains()); });
}

void Call::gate_up_task(Part& part, int task, Worker& worker) {
  const Geometry& g = part.shard->geometry;
  const int index = task / sizes_.tasks_per_expert;
  const Group& group = grouping_.active()[index];
  const int first = task % sizes_.tasks_per_expert * sizes_.gate_up_strips;
  const int strips = std::min(sizes_.gate_up_strips, 2 * g.gate_strips() - first);
    if (strips <= 0) return;  // a smaller shard than the one by which tasks were cut
  const Strips weights = gate_up_strips(part, group, first, strips);
  const std::size_t h_stride = h_format(Activation::bf16, part).bytes() / sizeof(bf16);
  const int column = first / 2 * strip_rows;
  bf16* h = part.h.as<bf16>() + group.first * h_stride + column;
  gate_up_kernels(group).gate_up({gathered_rows(index, worker), weights, h, h_stride, worker.scratch.as<>(),
                              gating_ ? &*gating_ : nullptr, from_column(part.shard->gate_bias(group.expert), column),
                              from_column(part.shard->up_bias(group.expert), column)},
                             worker.counters);
  const int columns = columns_within(column, strips / 2 * strip_rows, g.intermediate);
  zero_padding(part, group, column + columns, column + strips / 2 * strip_rows);
  worker.counters.weight_bytes += strips * weights.bytes;
  worker.counters.flops += 2ull * 2 * group.count * g.hidden * columns;
}

// `following` is the next task's, which is usually also this thread's.
Strips Call::gate_up_strips(const Part& part, const Group& group, int first, int strips) const {
  const Geometry& g = part.shard->geometry;
  const std::byte* data = part.shard->gate_up(group.expert) + first * g.gate_strip_bytes();
  return {data, strips, g.hidden_depth(), g.gate_strip_bytes(), g.format, gate_up_kernels(group).crossover,
          data + strips * g.gate_strip_bytes()};
}

// A down task goes from expert to expert, and from the last one to the first one's strips of the next task.
Strips Call::down_strips(const Part& part, int index, int first, int strips) const {
  const Geometry& g = part.shard->geometry;
  const std::vector<Group>& active = grouping_.active();
  const std::size_t offset = first * g.down_strip_bytes();
  const bool last = index + 1 == static_cast<int>(active.size());
  const std::byte* following = last ? part.shard->down(active.front().expert) + offset + strips * g.down_strip_bytes()
                                    : part.shard->down(active[index + 1].expert) + offset;
  return {part.shard->down(active[index].expert) + offset, strips, g.intermediate_depth(), g.down_strip_bytes(),
          g.down_format(), down_kernels(active[index]).crossover, following};
}

// Each thread gathers for itself, into its own cache, when its tasks move on to the next expert.
Rows Call::gathered_rows(int index, Worker& worker) {
  const Group& group = grouping_.active()[index];
  const RowFormat format = x_format(gate_up_kernels(group).activation);
  const std::byte* from = x_rows(format.kind).as<>();
  if (group.count == 1)
    return {from + *grouping_.token(group.first) * format.bytes(), format.bytes(), format.scale_at(), 1};
  if (std::exchange(worker.gathered, index) != index)
    for (int r = 0; r < group.count; ++r)
      std::memcpy(worker.panel.as<>() + r * format.bytes(), from + *grouping_.token(group.first + r) * format.bytes(),
                  format.bytes());
  return {worker.panel.as<>(), format.bytes(), format.scale_at(), group.count};
}

// Padding columns are 0 * 0 unless a token has an infinity: then they are NaN, and would corrupt a finite product.
void Call::zero_padding(const Part& part, const Group& group, int from, int to) const {
  const std::size_t stride = h_format(Activation::bf16, part).bytes() / sizeof(bf16);
  for (int slot = group.first; from < to && slot < group.first + group.count; ++slot)
    std::fill(part.h.as<bf16>() + slot * stride + from, part.h.as<bf16>() + slot * stride + to, bf16{0});
}

void Call::down_task(Part& part, int task, Worker& worker) {
  const Geometry& g = part.shard->geometry;
  const int first = task * sizes_.down_strips;
  const int strips = std::min(sizes_.down_strips, g.down_strips() - first), columns = strips * strip_rows;
  const bool alone = domains() == 1;
  const std::size_t stride = alone ? columns : g.down_strips() * strip_rows;
  float* sums = alone ? worker.sums.as<float>() : part.sums.as<float>() + first * strip_rows;
  begin_sums(part, first * strip_rows, columns, sums, stride);
  for (int index = 0; const Group& group : grouping_.active()) {
    const Strips weights = down_strips(part, index++, first, strips);
    down_kernels(group).down({h_rows(part, group), weights, grouping_.token(group.first), grouping_.gate(group.first),
                             sums, stride, worker.scratch.as<>()},
                            worker.counters);
    worker.counters.weight_bytes += strips * weights.bytes;
    worker.counters.flops +=
        2ull * group.count * g.intermediate * columns_within(first * strip_rows, columns, g.hidden);
  }
  if (alone) round_columns(first * strip_rows, columns, sums);
}

// Zeros, or the biases of each token's experts, weighted like their products.
void Call::begin_sums(const Part& part, int column, int columns, float* sums, std::size_t stride) const {
  for (int t = 0; t < inputs_.routing.tokens; ++t) std::fill_n(sums + t * stride, columns, 0.0f);
  for (const Group& group : grouping_.active()) {
    const float* bias = from_column(part.shard->down_bias(group.expert), column);
    if (!bias) return;
    for (int slot = group.first; slot < group.first + group.count; ++slot) {
      const float gate = *grouping_.gate(slot);
      float* to = sums + *grouping_.token(slot) * stride;
      for (int i = 0; i < columns; ++i) to[i] += gate * bias[i];
    }
  }
}

void Call::round_columns(int column, int columns, const float* sums) const {
  const int kept = columns_within(column, columns, geometry_.hidden);
  for (int t = 0; t < inputs_.routing.tokens; ++t)
    options_.down.few->round(sums + 1ul * t * columns, inputs_.out + 1ul * t * geometry_.hidden + column, kept);
}

void Call::reduce(int thread) {
  const std::size_t stride = 1ul * geometry_.down_strips() * strip_rows;
  const auto [begin, end] = part_of(geometry_.hidden, thread, threads());
  for (int t = 0; t < inputs_.routing.tokens; ++t) {
    float* sums = parts_.front().sums.as<float>() + t * stride;
    for (int d = 1; d < domains(); ++d)
      for (int i = begin; i < end; ++i) sums[i] += parts_[d].sums.as<float>()[t * stride + i];
    options_.down.few->round(sums + begin, inputs_.out + 1ul * t * geometry_.hidden + begin, end - begin);
  }
}

Counters Call::take_counters() {
  Counters sum;
  for (Worker& worker : workers_) sum += std::exchange(worker.counters, {});
  return sum;
}

std::unique_ptr<Call> CallPool::take(const PackedExperts& experts) {
  {
    const std::lock_guard lock(lock_);
    const auto found = std::find_if(idle_.begin(), idle_.end(), [&](const auto& call) { return call->fits(experts); });
    if (found != idle_.end()) {
      std::unique_ptr<Call> call = std::move(*found);
      idle_.erase(found);
      return call;
    }
  }
  return std::make_unique<Call>(experts, threads_);
}

void CallPool::give(std::unique_ptr<Call> call) {
  const std::lock_guard lock(lock_);
  idle_.push_back(std::move(call));
}

}  // namespace ktbench
