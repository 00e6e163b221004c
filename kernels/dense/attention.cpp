#include "dense/attention.h"

#include <algorithm>

namespace ktbench {
namespace {

constexpr int least_part = 4 * attend_chunk;  // 128 KiB of keys and values, at sizes of 128
constexpr std::int64_t most_parts = 4096;

std::int64_t pieces(std::int64_t n, std::int64_t size) { return (n + size - 1) / size; }

}  // namespace

std::size_t attend_scratch_bytes(int heads, int size, int value_size) {
  const std::size_t padded = round_up(size, 32), padded_values = round_up(value_size, 32);
  const std::size_t per_head = padded * sizeof(float) + attend_chunk * sizeof(float) + sizeof(float) + line_bytes;
  return heads * per_head + attend_chunk * (padded + padded_values) * sizeof(bf16) + 8 * line_bytes;
}

DecodeAttention::DecodeAttention(std::shared_ptr<Team> team)
    : team_(std::move(team)), scratch_(team_->threads()), tasks_(team_->threads()), counters_(team_->threads()) {
  phases_.emplace_back([this](int thread) { attend(thread); });
  phases_.emplace_back([this](int thread) { combine(thread); });
}

void DecodeAttention::forward(const AttentionCall& call, const AttentionKernels& kernels) {
  team_->check_process();
  const std::lock_guard lock(lock_);
  call_ = call, kernels_ = &kernels;
  cut();
  if (groups_.empty()) return;
  partials_.reserve(std::max<std::size_t>(parts_.size(), 1) * shape().floats() * sizeof(float));
  for (HugeBuffer& scratch : scratch_) scratch.reserve(attend_scratch_bytes(call.group(), call.size, call.value_size));
  tasks_.assign(static_cast<int>(parts_.size()));
  team_->run(std::span(phases_).first(direct_ ? 1 : 2));
}

// Short enough for many threads to share evenly, long enough to keep the number of partial results small.
int DecodeAttention::part_length() const {
  for (std::int64_t length = least_part;; length *= 2) {
    std::int64_t parts = 0;
    for (int b = 0; b < call_.sequences; ++b) parts += pieces(call_.length[b] - call_.first[b], length);
    if (parts * call_.key_heads <= most_parts || parts <= call_.sequences) return static_cast<int>(length);
  }
}

void DecodeAttention::cut() {
  groups_.clear(), parts_.clear();
  const int length = part_length();
  for (int b = 0; b < call_.sequences; ++b)
    for (int head = 0; head < call_.key_heads; ++head) add_group(b, head, length);
  direct_ = std::all_of(groups_.begin(), groups_.end(), [](const Group& group) { return group.parts == 1; });
}

void DecodeAttention::add_group(int sequence, int key_head, int length) {
  const int index = static_cast<int>(groups_.size()), first_part = static_cast<int>(parts_.size());
  for (std::int64_t p = call_.first[sequence], end = call_.length[sequence]; p < end; p += length)
    parts_.push_back({index, p, static_cast<int>(std::min<std::int64_t>(length, end - p))});
  groups_.push_back({sequence, key_head, first_part, static_cast<int>(parts_.size()) - first_part});
}

void DecodeAttention::attend(int thread) {
  tasks_.work(thread, true, counters_[thread],
               [&](int index) { attend_part(index, scratch_[thread].as<>()); });
}

void DecodeAttention::attend_part(int index, std::byte* scratch) {
  const Part& part = parts_[index];
  const Group& group = groups_[part.group];
  const int b = group.sequence, head = group.key_head;
  kernels_->attend({call_.q.at(b, head * call_.group(), 0), call_.q.head_stride, call_.keys.at(b, head, part.first),
                    call_.keys.stride, call_.values.at(b, head, part.first), call_.values.stride, part.positions,
                    call_.group(), call_.size, call_.value_size, call_.scale, partial(index), scratch});
  if (direct_) combine_group(group);
}

void DecodeAttention::combine(int thread) {
  const std::size_t count = groups_.size(), threads = team_->threads();
  for (std::size_t g = count * thread / threads; g < count * (thread + 1) / threads; ++g) combine_group(groups_[g]);
}

void DecodeAttention::combine_group(const Group& group) {
  const int head = group.key_head * call_.group();
  kernels_->combine({partial(group.first_part), group.parts, shape(), call_.sinks ? call_.sinks + head : nullptr,
                     call_.out.at(group.sequence, head, 0), call_.out.head_stride});
}

}  // namespace ktbench
