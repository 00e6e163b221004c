// Attention of a step's tokens over paged keys and values. Each token has a position and a sequence, whose table
// locates its pages. Neighbouring tokens of one sequence (in prompts) share the keys; the positions of a single token
// (in decode) are split into parts that a second phase combines. The split follows from positions alone, so the result
// depends neither on the thread count nor on other sequences.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "dense/attend.h"
#include "dense/heads.h"
#include "runtime/memory.h"
#include "runtime/partition.h"

namespace ktbench {

struct PagedCall {
  int tokens, query_heads, key_heads, size, value_size;
  CacheOf<const bf16> q;             // [tokens, query heads, 1, size]
  CacheOf<const bf16> keys, values;  // [pages, key heads, page tokens, size]
  int pages, page_tokens;
  const std::int64_t* tables;  // [sequences, table pages]
  std::size_t table_stride;
  int sequences, table_pages;
  const std::int64_t* sequence;  // of each token
  const std::int64_t* position;  // -1: the token attends to nothing and gets zeros
    std::int64_t window;           // positions that a token attends to, including its own
  CacheOf<bf16> out;             // [tokens, query heads, 1, value size]
  float scale;
  const float* sinks;  // [query heads], or null

  int group() const { return query_heads / key_heads; }
};

class PagedAttention {
 public:
  explicit PagedAttention(std::shared_ptr<Team> team);

  // Any thread may call; calls run one by one. Throws std::out_of_range for an invalid sequence, position or page,
  // before anything is written.
  void forward(const PagedCall& call, const AttentionKernels& kernels);

 private:
  // Neighbouring tokens of one sequence.
  struct Run {
    int first_token, tokens;
    std::int64_t position;
        std::size_t table;  // offset of its pages in tables_
  };
  // For one run and key head: some of its tokens, or some positions of its only token.
  struct Task {
    int run, key_head;
    int first_token, tokens;
    std::int64_t first;
    int positions, partial;
  };
  // The parts of a single token.
  struct Group {
    int run, key_head, first_partial, parts;
  };

  void find_runs();
  void clear_output(int token);
  void add_run(int first_token, int tokens, std::int64_t sequence, std::int64_t position);
  void cut(int run);
  void cut_token(int run, int key_head);
  std::int64_t first_seen(std::int64_t position) const;
  PartialShape shape() const { return {call_.group(), call_.value_size}; }
  float* partial(int number) { return partials_.as<float>() + number * shape().floats(); }
  void work(const Task& task, std::byte* scratch);
  void attend_token(const Task& task, std::byte* scratch);
  void attend_prompt(const Task& task, std::byte* scratch);
  void combine(int thread);

  const std::shared_ptr<Team> team_;
  std::mutex lock_;
  PagedCall call_{};
  const AttentionKernels* kernels_ = nullptr;
  std::vector<std::int32_t> tables_;
  std::vector<Run> runs_;
  std::vector<Task> parts_;
  std::vector<Group> groups_;
  int partial_count_ = 0, most_tokens_ = 0;
  HugeBuffer partials_;
  std::vector<HugeBuffer> scratch_;  // by thread
  TaskPartition tasks_;
  std::vector<Counters> counters_;
  std::vector<Team::Phase> phases_;
};

// out[page[t], head, offset[t]] = x[t, head] for every token.
void write_pages(CacheOf<const bf16> x, int tokens, int heads, int size, const std::int64_t* page,
                 const std::int64_t* offset, CacheOf<bf16> out);

}  // namespace ktbench
