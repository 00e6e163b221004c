// The fused MoE operator: two parallel phases, a barrier after each.
//   1. h = silu(x gate^T) * (x up^T) for every expert that has tokens, rounded to bf16.
//   2. out = sum over experts of gate weight * (h down^T), float32 sums in expert order, rounded to bf16 once.
// Each output element belongs to one task, so the result depends neither on the thread count nor on the schedule.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "core/kernels.h"
#include "moe/experts.h"
#include "moe/routing.h"
#include "runtime/shares.h"

namespace ktbench {

struct ForwardOptions {
  const Kernels* few;   // for experts with fewer than many_from tokens
  const Kernels* many;  // for the others
  int many_from;
  bool dynamic;
};

class MoE {
 public:
  MoE(std::shared_ptr<PackedExperts> experts, std::shared_ptr<Team> team);

  // hidden, out: [tokens, hidden], rows next to each other; they may be the same. Callers take turns.
  void forward(const bf16* hidden, const Routing& routing, bf16* out, const ForwardOptions& options);

  const Geometry& geometry() const { return experts_->geometry(); }
  Counters counters();  // summed over threads, since construction

 private:
  struct Worker {
    HugeBuffer panel;  // the rows of one expert's tokens, gathered
    int gathered = -1;
    HugeBuffer sums;  // [tokens, columns of one down task]
    HugeBuffer scratch{scratch_floats * sizeof(float)};
    Counters counters;
  };

  // How the two phases are cut into tasks.
  struct Cut {
    int gate_up_strips;     // per task
    int tasks_per_expert;
    int down_strips;        // per task
    int down_tasks;
  };

  struct Call {
    const bf16* hidden;
    bf16* out;
    int tokens;
    ForwardOptions options;
    Cut cut;
  };

  Cut cut_into_tasks(int tokens) const;
  void reserve_scratch(const Call& call);
  void run_phases(const Call& call);
  void gate_up_task(const Call& call, int task, Worker& worker);
  void down_task(const Call& call, int task, Worker& worker);
  Rows gathered_rows(const Call& call, int group, Worker& worker) const;
  void zero_padding(const Group& group, int from_column, int to_column) const;
  void round_columns(const Call& call, int column, int columns, const float* sums) const;

  bf16* h_row(int slot) const { return h_.as<bf16>() + slot * h_stride_; }

  const std::shared_ptr<PackedExperts> experts_;
  const std::shared_ptr<Team> team_;
  const std::size_t x_stride_;
  const std::size_t h_stride_;
  std::mutex turn_;
  Grouping grouping_;
  HugeBuffer h_;
  Shares gate_up_shares_;
  Shares down_shares_;
  std::vector<Worker> workers_;
};

}  // namespace ktbench
