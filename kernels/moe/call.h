// One call of the fused operator: its buffers, its tasks, its phases.
#pragma once

#include <optional>
#include <vector>

#include "moe/forward.h"

namespace ktbench {

class Call {
 public:
  Call(const PackedExperts& experts, int threads);

  // Plans the call. What it needs is allocated here, so that phases cannot fail for want of memory.
  void prepare(const ForwardInputs& inputs, const ForwardOptions& options);
  const std::vector<Team::Phase>& phases() const { return phases_; }
  Counters take_counters();

 private:
  struct Worker {
    HugeBuffer panel;  // the rows of one expert's tokens, gathered
    int gathered = -1;
    HugeBuffer sums;  // [tokens, columns of one down task]
    HugeBuffer scratch;
    Counters counters;
  };

  // One domain's share of the layer.
  struct Part {
    const Shard* shard;
    HugeBuffer h;         // bf16, a row for each slot
    HugeBuffer prepared;  // the same as the kernels want it
    HugeBuffer sums;      // [tokens, padded hidden] float32, where there are several domains
  };

  // How the phases are cut into tasks.
  struct Cut {
    int gate_up_strips;  // per task
    int tasks_per_expert;
    int down_strips;  // per task
    int down_tasks;
  };

  int threads() const { return static_cast<int>(workers_.size()); }
  int domains() const { return static_cast<int>(parts_.size()); }
  const Kernels& kernels_for(const Group& group) const;
  RowFormat x_format(Activation kind) const;
  RowFormat h_format(Activation kind, const Part& part) const;
  RowFormat largest_h_format(const Part& part) const;
  bool uses(Activation kind) const { return used_[static_cast<int>(kind)]; }
  HugeBuffer& x_rows(Activation kind) { return x_[static_cast<int>(kind)]; }

  Cut cut_into_tasks() const;
  void note_used_kernels();
  void reserve();
  void deal();
  void build_phases();

  void prepare_x(int thread);
  void prepare_h(int thread);
  void reduce(int thread);
  void work(std::vector<Shares>& shares, int thread, void (Call::*task)(Part&, int, Worker&));
  void gate_up_task(Part& part, int task, Worker& worker);
  void down_task(Part& part, int task, Worker& worker);
  void begin_sums(const Part& part, int column, int columns, float* sums, std::size_t stride) const;
  Strips gate_up_strips(const Part& part, int expert, int first, int strips) const;
  Strips down_strips(const Part& part, int index, int first, int strips) const;
  Rows gathered_rows(int index, Worker& worker);
  Rows h_rows(const Part& part, const Group& group) const;
  std::byte* h_begin(const Part& part, const Group& group) const;
  void zero_padding(const Part& part, const Group& group, int from, int to) const;
  void round_columns(int column, int columns, const float* sums) const;

  const Geometry geometry_;
  const std::optional<Gating> gating_;  // none: plain SwiGLU without biases
  std::vector<Worker> workers_;
  std::vector<Part> parts_;
  Cut cut_{};
  ForwardInputs inputs_{};
  ForwardOptions options_{};
  Grouping grouping_;
  bool used_[activations] = {};
  HugeBuffer x_[activations];
  std::vector<Shares> gate_up_shares_;  // one for all threads, or one for each domain's
  std::vector<Shares> down_shares_;
  std::vector<Team::Phase> phases_;
};

}  // namespace ktbench
