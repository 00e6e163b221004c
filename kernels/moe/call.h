// One call of the fused operator: its buffers, its tasks, its phases.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "moe/forward.h"

namespace ktbench {

class Call {
 public:
  Call(const PackedExperts& experts, int threads);

  // Whether the buffers fit such experts. Kernels read padding that no phase writes, which must stay zero: a buffer
  // that was divided into other rows before may hold anything there.
  bool fits(const PackedExperts& experts) const;
  // Plans the call and allocates everything, so that no phase can run out of memory. `experts` must fit, and live until
  // the phases have run.
  void prepare(const PackedExperts& experts, const ForwardInputs& inputs, const ForwardOptions& options);
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
    const Shard* shard = nullptr;
    HugeBuffer h;         // bf16, a row for each slot
    HugeBuffer prepared;  // the same in the kernels' activation format
        HugeBuffer sums;      // [tokens, padded hidden] float32, with several domains
  };

  // How the phases are cut into tasks.
  struct TaskSizes {
    int gate_up_strips;  // per task
    int tasks_per_expert;
    int down_strips;  // per task
    int down_tasks;
  };

  int threads() const { return static_cast<int>(workers_.size()); }
  int domains() const { return static_cast<int>(parts_.size()); }
  const Kernels& gate_up_kernels(const Group& group) const;
  const Kernels& down_kernels(const Group& group) const;
  RowFormat x_format(Activation kind) const;
  RowFormat h_format(Activation kind, const Part& part) const;
  RowFormat largest_h_format(const Part& part) const;
  bool uses(Activation kind) const { return used_[static_cast<int>(kind)]; }
  HugeBuffer& x_rows(Activation kind) { return x_[static_cast<int>(kind)]; }

  TaskSizes size_tasks() const;
  void bind(const PackedExperts& experts);
  void note_used_kernels();
  void reserve();
  void partition();
  void build_phases();

  void prepare_x(int thread);
  void prepare_h(int thread);
  void reduce(int thread);
  void work(std::vector<TaskPartition>& tasks, int thread, const KernelPair& kernels,
            void (Call::*task)(Part&, int, Worker&));
  void gate_up_task(Part& part, int task, Worker& worker);
  void down_task(Part& part, int task, Worker& worker);
  void begin_sums(const Part& part, int column, int columns, float* sums, std::size_t stride) const;
  Strips gate_up_strips(const Part& part, const Group& group, int first, int strips) const;
  Strips down_strips(const Part& part, int index, int first, int strips) const;
  Rows gathered_rows(int index, Worker& worker);
  Rows h_rows(const Part& part, const Group& group) const;
  std::byte* h_begin(const Part& part, const Group& group) const;
  void zero_padding(const Part& part, const Group& group, int from, int to) const;
  void round_columns(int column, int columns, const float* sums) const;

  const Geometry geometry_;
  std::optional<Gating> gating_;  // none: plain SwiGLU without biases
  std::vector<Worker> workers_;
  std::vector<Part> parts_;
  TaskSizes sizes_{};
  ForwardInputs inputs_{};
  ForwardOptions options_{};
  Grouping grouping_;
  bool used_[activations] = {};  // by gate and up
  bool converts_h_ = false;
  HugeBuffer x_[activations];
    std::vector<TaskPartition> gate_up_tasks_;  // one for all threads, or one per domain
  std::vector<TaskPartition> down_tasks_;
  std::vector<Team::Phase> phases_;
};

// Idle calls. The layers of a model run one after the other: layers of one shape share them.
class CallPool {
 public:
  explicit CallPool(int threads) : threads_(threads) {}

  std::unique_ptr<Call> take(const PackedExperts& experts);
  void give(std::unique_ptr<Call> call);

 private:
  const int threads_;
  std::mutex lock_;
  std::vector<std::unique_ptr<Call>> idle_;
};

}  // namespace ktbench
