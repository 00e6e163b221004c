// y = x W^T + bias over a packed matrix: the MoE kernels' `down` with gate weights of 1. Many activations are first
// converted to the kernels' format in a phase; then follows a phase of tasks, each some strips x some tokens. Each
// output element belongs to one task, so the result depends neither on the thread count nor on the schedule.
#pragma once

#include <memory>
#include <vector>

#include "core/kernels.h"
#include "linear/matrix.h"
#include "linear/workspace.h"

namespace ktbench {

struct LinearCounters {
  std::uint64_t calls = 0;
  Counters kernels;
};

class Linear {
 public:
  // `bias`: a number for each row, or empty. Throws std::invalid_argument for another count.
  Linear(std::shared_ptr<PackedMatrix> weights, std::shared_ptr<Team> team, const std::vector<float>& bias);

  // x [tokens, columns], out [tokens, rows]; contiguous and not overlapping. Any thread may call; calls of a team run
  // one by one.
  void forward(const bf16* x, int tokens, bf16* out, const Kernels& kernels);

  const PackedMatrix& weights() const { return *weights_; }
  LinearCounters counters();

 private:
  struct Call {
    const bf16* x;
    int tokens;
    bf16* out;
    const Kernels* kernels;
    RowFormat format;
        bool own_rows;  // each thread prepares them for itself: for few rows that takes less time than a barrier
    int block_tokens, blocks;
    int strips;  // of a task
  };

  struct Buffers;  // parts of a worker's memory

  Call plan(const bf16* x, int tokens, bf16* out, const Kernels& kernels) const;
  int tasks() const;
  int strips_per_task(int tokens, int blocks) const;
  Buffers buffers(std::byte* memory) const;
  void reserve();
  void prepare_rows(int begin, int end, std::byte* to) const;
  void prepare(int thread);
  void multiply(int thread);
  void task(int number, const Buffers& buffers, Counters& counters) const;
  Rows rows_of(int first, int count, const Buffers& buffers) const;
  Strips strips_of(int first, int count, bool last_block) const;
  void collect();

  const std::shared_ptr<PackedMatrix> weights_;
  const std::shared_ptr<Team> team_;
  const std::shared_ptr<Workspace> workspace_;
    std::vector<float> bias_;  // also for padding rows; zeros without a bias
  std::vector<Team::Phase> phases_;
  Call call_{};
  LinearCounters counted_;
};

}  // namespace ktbench
