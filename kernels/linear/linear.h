// y = x W^T + bias over a packed matrix: the MoE kernels' `down` with gate weights of 1. A phase for activations as the
// kernels want them, where they are many; then one of tasks, each some strips x some tokens.
// Each output element belongs to one task, so the result depends neither on the thread count nor on the schedule.
#pragma once

#include <memory>
#include <vector>

#include "core/kernels.h"
#include "linear/matrix.h"
#include "linear/workspace.h"

namespace ktbench {

// Those of the fastest ISA that is granted for so many tokens: AMX from 5 up, where it has any.
const Kernels& fastest_kernels(Precision precision, int tokens);

struct LinearCounters {
  std::uint64_t calls = 0;
  Counters kernels;
};

class Linear {
 public:
  // `bias`: a number for each row, or empty. Throws std::invalid_argument for another count.
  Linear(std::shared_ptr<PackedMatrix> weights, std::shared_ptr<Team> team, const std::vector<float>& bias);

  // x [tokens, columns], out [tokens, rows]; rows next to each other, no memory in common. Any thread may call; calls
  // of a team run one by one.
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
    bool own_rows;  // each thread prepares them for itself: where they are few, that takes less time than a barrier
    int block_tokens, blocks;
    int strips;  // of a task
  };

  struct Room;  // what a worker's memory is used for

  Call plan(const bf16* x, int tokens, bf16* out, const Kernels& kernels) const;
  int tasks() const;
  int strips_per_task(int tokens, int blocks) const;
  Room room(std::byte* memory) const;
  void reserve();
  void prepare_rows(int begin, int end, std::byte* to) const;
  void prepare(int thread);
  void multiply(int thread);
  void task(int number, const Room& room, Counters& counters) const;
  Rows rows_of(int first, int count, const Room& room) const;
  Strips strips_of(int first, int count, bool last_block) const;
  void collect();

  const std::shared_ptr<PackedMatrix> weights_;
  const std::shared_ptr<Team> team_;
  const std::shared_ptr<Workspace> workspace_;
  std::vector<float> bias_;  // for padding rows, too; zeros where there is none
  std::vector<Team::Phase> phases_;
  Call call_{};
  LinearCounters counted_;
};

}  // namespace ktbench
