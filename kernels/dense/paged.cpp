#include "dense/paged.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace ktbench {
namespace {

constexpr int part_positions = 4 * attend_chunk;  // of a single token
constexpr int prompt_rows = 64;                   // tokens times heads that keys are widened for

std::size_t pieces(std::int64_t n, std::int64_t size) { return (n + size - 1) / size; }

void check(const char* name, std::int64_t value, std::int64_t least, std::int64_t most, int token) {
  if (value < least || value > most)
    throw std::out_of_range(std::string(name) + "=" + std::to_string(value) + " of token " + std::to_string(token) +
                            " is not in " + std::to_string(least) + ".." + std::to_string(most));
}

}  // namespace

std::size_t prompt_scratch_bytes(int rows, int size, int value_size) {
  constexpr std::size_t widest_panel = 32;
  const std::size_t padded = round_up(size, 32), padded_values = round_up(value_size, 32);
  const std::size_t padded_rows = round_up(rows, widest_panel);
  const std::size_t floats = padded_rows * (padded + padded_values + 2) + attend_chunk * (padded + padded_values) +
                             attend_chunk * widest_panel;
  return floats * sizeof(float) + std::max(padded, padded_values) * sizeof(bf16) + 8 * line_bytes;
}

PagedAttention::PagedAttention(std::shared_ptr<Team> team)
    : team_(std::move(team)), scratch_(team_->threads()), tasks_(team_->threads()), counters_(team_->threads()) {
  phases_.emplace_back([this](int thread) {
    tasks_.work(thread, true, counters_[thread],
                 [&](int index) { work(parts_[index], scratch_[thread].as<>()); });
  });
  phases_.emplace_back([this](int thread) { combine(thread); });
}

void PagedAttention::forward(const PagedCall& call, const AttentionKernels& kernels) {
  team_->check_process();
  const std::lock_guard lock(lock_);
  call_ = call, kernels_ = &kernels;
  find_runs();
  for (int t = 0; t < call.tokens; ++t)
    if (call.position[t] < 0) clear_output(t);
  for (int run = 0; run < static_cast<int>(runs_.size()); ++run) cut(run);
  if (parts_.empty()) return;
  partials_.reserve(std::max<std::size_t>(partial_count_, 1) * shape().floats() * sizeof(float));
  for (HugeBuffer& scratch : scratch_)
    scratch.reserve(std::max(attend_scratch_bytes(call.group(), call.size, call.value_size),
                             prompt_scratch_bytes(most_tokens_ * call.group(), call.size, call.value_size)));
  tasks_.assign(static_cast<int>(parts_.size()));
  team_->run(std::span(phases_).first(groups_.empty() ? 1 : 2));
}

void PagedAttention::find_runs() {
  tables_.clear(), runs_.clear(), parts_.clear(), groups_.clear();
  partial_count_ = most_tokens_ = 0;
  const std::int64_t last = std::int64_t{1} * call_.table_pages * call_.page_tokens - 1;
  std::int64_t sequence = 0, position = -1;  // of the run so far
  int first = 0;
  const auto end_run = [&](int token) {
    if (position >= 0) add_run(first, token - first, sequence, position - (token - first) + 1);
  };
  for (int t = 0; t < call_.tokens; ++t) {
    const std::int64_t of_sequence = call_.sequence[t], at = call_.position[t];
    check("sequence", of_sequence, 0, call_.sequences - 1, t);
    check("position", at, -1, last, t);
    if (position < 0 || of_sequence != sequence || at != position + 1) end_run(t), first = t;
    sequence = of_sequence, position = at;
  }
  end_run(call_.tokens);
}

void PagedAttention::clear_output(int token) {
  for (int h = 0; h < call_.query_heads; ++h) std::fill_n(call_.out.at(token, h, 0), call_.value_size, bf16{0});
}

void PagedAttention::add_run(int first_token, int tokens, std::int64_t sequence, std::int64_t position) {
  const std::size_t table = tables_.size();
  for (std::size_t i = 0; i < pieces(position + tokens, call_.page_tokens); ++i) {
    const std::int64_t page = call_.tables[sequence * call_.table_stride + i];
    const bool is_seen = static_cast<std::int64_t>(i + 1) * call_.page_tokens > first_seen(position);
    if (is_seen) check("page", page, 0, call_.pages - 1, first_token);
    tables_.push_back(is_seen ? static_cast<std::int32_t>(page) : 0);
  }
  runs_.push_back({first_token, tokens, position, table});
}

std::int64_t PagedAttention::first_seen(std::int64_t position) const {
  return position < call_.window ? 0 : position - call_.window + 1;
}

void PagedAttention::cut(int run) {
  const Run& of = runs_[run];
  const int tokens = std::max(1, prompt_rows / call_.group());
  for (int head = 0; head < call_.key_heads; ++head) {
    if (of.tokens == 1) {
      cut_token(run, head);
      continue;
    }
    for (int first = 0; first < of.tokens; first += tokens)
      parts_.push_back({run, head, first, std::min(tokens, of.tokens - first), 0, 0, 0});
  }
  if (of.tokens > 1) most_tokens_ = std::max(most_tokens_, std::min(tokens, of.tokens));
}

// As in DecodeAttention: short enough for many threads to share evenly.
void PagedAttention::cut_token(int run, int key_head) {
  const std::int64_t first = first_seen(runs_[run].position), end = runs_[run].position + 1;
  const std::int64_t length = std::max<std::int64_t>(part_positions, (end - first) / 256);
  groups_.push_back({run, key_head, partial_count_, static_cast<int>(pieces(end - first, length))});
  for (std::int64_t p = first; p < end; p += length)
    parts_.push_back({run, key_head, 0, 1, p, static_cast<int>(std::min(length, end - p)), partial_count_++});
}

void PagedAttention::work(const Task& task, std::byte* scratch) {
  task.positions ? attend_token(task, scratch) : attend_prompt(task, scratch);
}

void PagedAttention::attend_token(const Task& task, std::byte* scratch) {
  const Run& run = runs_[task.run];
  const PagedCall& c = call_;
  kernels_->attend_pages({c.q.at(run.first_token, task.key_head * c.group(), 0), c.q.head_stride,
                          {c.keys.at(0, task.key_head, 0), c.keys.sequence_stride, c.keys.stride},
                          {c.values.at(0, task.key_head, 0), c.values.sequence_stride, c.values.stride},
                          &tables_[run.table], c.page_tokens, task.first, task.positions, c.group(), c.size,
                          c.value_size, c.scale, partial(task.partial), scratch});
}

void PagedAttention::attend_prompt(const Task& task, std::byte* scratch) {
  const Run& run = runs_[task.run];
  const PagedCall& c = call_;
  const int token = run.first_token + task.first_token, head = task.key_head * c.group();
  kernels_->attend_prompt({c.q.at(token, head, 0), c.q.sequence_stride, c.q.head_stride,
                           {c.keys.at(0, task.key_head, 0), c.keys.sequence_stride, c.keys.stride},
                           {c.values.at(0, task.key_head, 0), c.values.sequence_stride, c.values.stride},
                           &tables_[run.table], c.page_tokens, run.position + task.first_token, c.window, task.tokens,
                           c.group(), c.size, c.value_size, c.scale, c.sinks ? c.sinks + head : nullptr,
                           c.out.at(token, head, 0), c.out.sequence_stride, c.out.head_stride, scratch});
}

void PagedAttention::combine(int thread) {
  const std::size_t count = groups_.size(), threads = team_->threads();
  for (std::size_t g = count * thread / threads; g < count * (thread + 1) / threads; ++g) {
    const Group& group = groups_[g];
    const int head = group.key_head * call_.group();
    kernels_->combine({partial(group.first_partial), group.parts, shape(), call_.sinks ? call_.sinks + head : nullptr,
                       call_.out.at(runs_[group.run].first_token, head, 0), call_.out.head_stride});
  }
}

void write_pages(CacheOf<const bf16> x, int tokens, int heads, int size, const std::int64_t* page,
                 const std::int64_t* offset, CacheOf<bf16> out) {
  for (int t = 0; t < tokens; ++t)
    for (int h = 0; h < heads; ++h) std::copy_n(x.at(t, h, 0), size, out.at(page[t], h, offset[t]));
}

}  // namespace ktbench
