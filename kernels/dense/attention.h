// Attention of a decode step: one query token per sequence over a static cache. Long contexts are split into parts that
// any thread may take, and a second phase combines their partial results. The split follows from the lengths alone, so
// the result does not depend on the thread count.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "dense/attend.h"
#include "dense/heads.h"
#include "runtime/memory.h"
#include "runtime/partition.h"

namespace ktbench {

struct AttentionCall {
  int sequences, query_heads, key_heads, size, value_size;
  CacheOf<const bf16> q;  // [sequences, query heads, 1, size]
  CacheOf<const bf16> keys, values;
  const std::int64_t* first;  // positions first <= p < length, one pair for each sequence
  const std::int64_t* length;
  CacheOf<bf16> out;  // [sequences, query heads, 1, value size]
  float scale;
  const float* sinks;  // [query heads], or null

  int group() const { return query_heads / key_heads; }
};

class DecodeAttention {
 public:
  explicit DecodeAttention(std::shared_ptr<Team> team);

  // Any thread may call; calls run one by one.
  void forward(const AttentionCall& call, const AttentionKernels& kernels);

 private:
  // The query heads of one sequence that share a key head.
  struct Group {
    int sequence, key_head;
    int first_part, parts;
  };
  struct Part {
    int group;
    std::int64_t first;
    int positions;
  };

  void cut();
  int part_length() const;
  void add_group(int sequence, int key_head, int length);
  PartialShape shape() const { return {call_.group(), call_.value_size}; }
  float* partial(int part) { return partials_.as<float>() + part * shape().floats(); }
  void attend(int thread);
  void attend_part(int index, std::byte* scratch);
  void combine(int thread);
  void combine_group(const Group& group);

  const std::shared_ptr<Team> team_;
  std::mutex lock_;
  AttentionCall call_{};
  const AttentionKernels* kernels_ = nullptr;
    bool direct_ = false;  // no group has more than one part: each is combined by the thread that computed it
  std::vector<Group> groups_;
  std::vector<Part> parts_;
  HugeBuffer partials_;
  std::vector<HugeBuffer> scratch_;  // by thread
  TaskPartition tasks_;
  std::vector<Counters> counters_;
  std::vector<Team::Phase> phases_;
};

}  // namespace ktbench
