#include "training/products.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

#include "moe/pack.h"

namespace ktbench {
namespace {

constexpr int block_strips = 8;  // of a task of a forward product

std::size_t padded_rows(int rows) { return round_up(rows, row_padding) + row_padding; }
int blocks_of(int n, int size) { return (n + size - 1) / size; }

}  // namespace

ExpertProducts::ExpertProducts(std::shared_ptr<PackedExperts> experts, std::shared_ptr<Team> team, int tag)
    : experts_(std::move(experts)), team_(std::move(team)), tag_(tag), workers_(team_->threads()), rows_(domains()),
      formats_(domains()) {
  if (tag < 0) throw std::invalid_argument("tag=" + std::to_string(tag) + " must not be negative");
}

int ExpertProducts::inputs(Matrices which) const {
  const Geometry& g = experts_->geometry();
  return which == Matrices::gate_up ? g.hidden : g.intermediate;
}

int ExpertProducts::outputs(Matrices which) const {
  const Geometry& g = experts_->geometry();
  return which == Matrices::gate_up ? 2 * g.intermediate : g.hidden;
}

Format ExpertProducts::format_of(const Geometry& g) const { return gates() ? g.format : g.down_format(); }
int ExpertProducts::depth_of(const Geometry& g) const { return gates() ? g.hidden_depth() : g.intermediate_depth(); }
int ExpertProducts::strips_of(const Geometry& g) const { return gates() ? 2 * g.gate_strips() : g.down_strips(); }

// Plans a call with `blocks` tasks for each expert that has slots, and each domain.
void ExpertProducts::begin(const Slots& slots, int blocks, bool numa) {
  if (numa && threads() < domains())
    throw std::invalid_argument(std::to_string(domains()) + " domains need as many threads, the team has " +
                                std::to_string(threads()));
  slots_ = slots, blocks_ = blocks, largest_ = 0;
  groups_.clear(), tasks_.clear();
  for (int e = 0; e < experts_->geometry().experts; ++e) {
    const int count = slots.first[e + 1] - slots.first[e];
    if (count > 0) groups_.push_back({e, slots.first[e], count});
    largest_ = std::max(largest_, count);
  }
  const int tasks = static_cast<int>(groups_.size()) * blocks;
  const bool apart = numa && domains() > 1;
  for (int d = 0; d < (apart ? domains() : 1); ++d) {
    const int team = apart ? first_thread(d + 1, threads(), domains()) - first_thread(d, threads(), domains()) : threads();
    tasks_.emplace_back(team).assign(tasks * (apart ? 1 : domains()));
  }
}

void ExpertProducts::run(std::vector<Team::Phase> phases) {
  team_->run(phases, tag_);
  for (Worker& worker : workers_) counted_ += std::exchange(worker.counters, {});
  experts_->check_file();
}

// Without numa, tasks of the domains alternate, so that all memories are read at any time.
template <class Body>
void ExpertProducts::work(int thread, bool dynamic, bool numa, Body body) {
  Worker& worker = workers_[thread];
  const int mine = domain_of(thread, threads(), domains());
  const auto task = [&](int domain, int number) {
    const std::uint64_t before = worker.counters.weight_bytes;
    body(Task{domain, number / blocks_, number % blocks_}, worker);
    const std::uint64_t read = worker.counters.weight_bytes - before;
    if (numa && domain == mine) worker.counters.local_bytes += read;
    if (domain != mine) worker.counters.remote_bytes += read;
  };
  if (tasks_.size() > 1)
    tasks_[mine].work(thread - first_thread(mine, threads(), domains()), dynamic, worker.counters,
                      [&](int i) { task(mine, i); });
  else
    tasks_.front().work(thread, dynamic, worker.counters, [&](int i) { task(i % domains(), i / domains()); });
}

void ExpertProducts::forward(Matrices which, const bf16* x, int rows, const Slots& slots, float* out,
                             const ForwardOptions& options) {
  if (slots.count == 0) return;
  team_->check_process();
  const std::lock_guard lock(lock_);
  which_ = which, out_ = out;
  int strips = 0;
  for (const Shard& shard : experts_->shards()) strips = std::max(strips, strips_of(shard.geometry));
  begin(slots, blocks_of(strips, block_strips), options.numa);
  const KernelPair& pair = which == Matrices::gate_up ? options.gate_up : options.down;
  kernels_ = &pair.for_tokens(slots.count / static_cast<int>(groups_.size()));
  reserve(rows);
  const auto prepare = [&](int thread) { prepare_rows(x, rows, thread); };
  const auto multiply = [&](int thread) {
    kernels_->enter();
    work(thread, options.dynamic, options.numa, [&](const Task& task, Worker& worker) { forward_task(task, worker); });
    kernels_->leave();
  };
  run({prepare, multiply});
}

// Of a forward product.
void ExpertProducts::reserve(int rows) {
  std::size_t row_bytes = 0;  // domains' shares of down differ in depth
  for (int d = 0; d < domains(); ++d) {
    const Geometry& g = experts_->shards()[d].geometry;
    formats_[d] = {kernels_->activation, depth_of(g), format_of(g).minima_group()};
    rows_[d].reserve(padded_rows(rows) * formats_[d].bytes());
    row_bytes = std::max(row_bytes, formats_[d].bytes());
  }
  counting_.resize(largest_), ones_.assign(largest_, 1.0f);
  std::iota(counting_.begin(), counting_.end(), 0);
  for (Worker& worker : workers_) {
    worker.gathered = -1;
    worker.scratch.reserve(scratch_bytes(experts_->geometry()));
    worker.rows.reserve(padded_rows(largest_) * row_bytes);
    worker.sums.reserve(1ul * largest_ * block_strips * strip_rows * sizeof(float));
  }
}

// A thread's share of the rows, in the format of each domain.
void ExpertProducts::prepare_rows(const bf16* x, std::int64_t rows, int thread) {
  const int width = inputs(which_);
  for (int d = 0; d < domains(); ++d) {
    const Shard& shard = experts_->shards()[d];
    const int from = gates() ? 0 : shard.first, count = gates() ? width : shard.geometry.intermediate;
    for (std::int64_t r = rows * thread / threads(); r < rows * (thread + 1) / threads(); ++r)
      kernels_->prepare(x + r * width + from, count, formats_[d], rows_[d].as<>() + r * formats_[d].bytes());
  }
}

// Each thread gathers for itself, into its own cache, when its tasks move on to the next expert.
Rows ExpertProducts::gathered_rows(const Task& task, Worker& worker) {
  const Group& group = groups_[task.group];
  const RowFormat& format = formats_[task.domain];
  const int wanted = task.group * domains() + task.domain;
  if (std::exchange(worker.gathered, wanted) != wanted)
    for (int r = 0; r < group.count; ++r)
      std::memcpy(worker.rows.as<>() + r * format.bytes(),
                  rows_[task.domain].as<>() + slots_.row[group.first + r] * format.bytes(), format.bytes());
  return {worker.rows.as<>(), format.bytes(), format.scale_at(), group.count};
}

void ExpertProducts::forward_task(const Task& task, Worker& worker) {
  const Group& group = groups_[task.group];
  const Shard& shard = experts_->shards()[task.domain];
  const Geometry& g = shard.geometry;
  const int first = task.block * block_strips, strips = std::min(block_strips, strips_of(g) - first);
    if (strips <= 0) return;  // a smaller shard than the one by which tasks were cut
  const std::size_t bytes = gates() ? g.gate_strip_bytes() : g.down_strip_bytes();
  const std::byte* data = (gates() ? shard.gate_up(group.expert) : shard.down(group.expert)) + first * bytes;
  const Strips weights{data, strips, depth_of(g), bytes, format_of(g), kernels_->crossover,
                       data + strips * bytes};
  const int columns = strips * strip_rows;
  float* sums = worker.sums.as<float>();
  std::fill_n(sums, 1ul * group.count * columns, 0.0f);
  kernels_->down({gathered_rows(task, worker), weights, counting_.data(), ones_.data(), sums,
                  static_cast<std::size_t>(columns), worker.scratch.as<>()},
                 worker.counters);
  put_products(task, first, strips, sums);
  worker.counters.weight_bytes += strips * bytes;
  worker.counters.flops += 2ull * group.count * columns * (gates() ? g.hidden : g.intermediate);
}

// The products of strips [first, first + strips) of a domain, written to their columns of the output.
void ExpertProducts::put_products(const Task& task, int first, int strips, const float* sums) {
  const Group& group = groups_[task.group];
  const Shard& shard = experts_->shards()[task.domain];
  const int width = outputs(which_), size = gates() ? shard.geometry.intermediate : shard.geometry.hidden;
  float* out = out_ + (gates() ? 0 : 1ul * task.domain * slots_.count * width);
  for (int s = 0; s < strips; ++s) {
    const int strip = first + s, row = (gates() ? strip / 2 : strip) * strip_rows;
    const int kept = std::clamp(size - row, 0, strip_rows);
    const int column = gates() ? strip % 2 * experts_->geometry().intermediate + shard.first + row : row;
    for (int r = 0; r < group.count; ++r)
      std::copy_n(sums + (1ul * r * strips + s) * strip_rows, kept, out + 1ul * (group.first + r) * width + column);
  }
}

void ExpertProducts::transposed(Matrices which, const float* y, const Slots& slots, float* out,
                                const TransposedOptions& options) {
  if (slots.count == 0) return;
  team_->check_process();
  const std::lock_guard lock(lock_);
  which_ = which, y_ = y, out_ = out, options_ = options;
  int depth = 0;
  for (const Shard& shard : experts_->shards()) depth = std::max(depth, depth_of(shard.geometry));
  // Strips without a widening kernel are unpacked as a whole.
  width_ = widens(format_of(experts_->geometry())) ? panel_columns : depth;
  begin(slots, blocks_of(depth, width_), options.numa);
  for (Worker& worker : workers_) {
    worker.panel.reserve((panel_rows + strip_rows) * 1ul * width_ * sizeof(float));
    worker.sums.reserve(1ul * largest_ * width_ * sizeof(float));
  }
  run({[&](int thread) {
    work(thread, options.dynamic, options.numa, [&](const Task& task, Worker& worker) { transposed_task(task, worker); });
  }});
}

void ExpertProducts::transposed_task(const Task& task, Worker& worker) {
  const Group& group = groups_[task.group];
  const Shard& shard = experts_->shards()[task.domain];
  const Geometry &g = shard.geometry, &whole = experts_->geometry();
  const int first = task.block * width_, columns = std::min(width_, depth_of(g) - first);
  if (columns <= 0) return;
  std::fill_n(worker.sums.as<float>(), 1ul * group.count * width_, 0.0f);
  if (gates()) {
    const std::byte* gate = shard.gate_up(group.expert);
    const std::size_t bytes = g.gate_strip_bytes();
    add_matrix({gate, 2 * bytes, g.intermediate, shard.first}, g, first, columns, group, worker);
    add_matrix({gate + bytes, 2 * bytes, g.intermediate, whole.intermediate + shard.first}, g, first, columns, group,
               worker);
  } else {
    add_matrix({shard.down(group.expert), g.down_strip_bytes(), g.hidden, 0}, g, first, columns, group, worker);
  }
  const int width = inputs(which_), column = gates() ? first : shard.first + first;
  const int kept = std::clamp((gates() ? g.hidden : g.intermediate) - first, 0, columns);
  float* out = out_ + (gates() ? 1ul * task.domain * slots_.count * width : 0) + 1ul * group.first * width + column;
  for (int r = 0; r < group.count; ++r) std::copy_n(worker.sums.as<float>() + 1ul * r * width_, kept, out + 1ul * r * width);
  ++(worker.counters.*options_.counter);
}

// sums += y W of some columns.
void ExpertProducts::add_matrix(const Matrix& matrix, const Geometry& g, int first, int columns, const Group& group,
                                Worker& worker) {
  const Format format = format_of(g);
  for (int begin = 0; begin < matrix.rows; begin += panel_rows) {
    const int rows = std::min(panel_rows, matrix.rows - begin);
    for (int r = 0; r < rows; r += strip_rows) {
      const std::byte* strip = matrix.strips + (begin + r) / strip_rows * matrix.bytes;
      const auto ahead = static_cast<std::ptrdiff_t>(matrix.bytes) * (panel_rows / strip_rows);
      float* panel = worker.panel.as<float>();
      widens(format) ? options_.kernels->widen({strip, format, first, columns, r, ahead, panel})
                     : unpack(strip, format, columns, r, panel);
    }
    options_.kernels->multiply({worker.panel.as<float>(), rows, columns, y_ + matrix.at + begin,
                                static_cast<std::size_t>(outputs(which_)), slots_.row + group.first, group.count,
                                worker.sums.as<float>(), static_cast<std::size_t>(width_)});
  }
  worker.counters.weight_bytes += 1ul * matrix.rows * format.strip_bytes(depth_of(g)) / strip_rows * columns / depth_of(g);
  worker.counters.flops += 2ull * group.count * matrix.rows * columns;
}

// All columns of a strip; room for them row by row follows the panel.
void ExpertProducts::unpack(const std::byte* strip, const Format& format, int columns, int row, float* panel) const {
  float* whole = panel + 1ul * panel_rows * width_;
  unpack_strip(strip, strip_rows, columns, format, whole, columns);
  const int slice = options_.kernels->slice;
  for (int r = 0; r < strip_rows; ++r)
    for (int c = 0; c < columns; c += slice)
      std::copy_n(whole + 1ul * r * columns + c, slice, panel + 1ul * c * panel_rows + (row + r) * slice);
}

Counters ExpertProducts::counters() {
  const std::lock_guard lock(lock_);
  return counted_;
}

}  // namespace ktbench
