// Products of a training step besides the fused operator: rows grouped by expert times gate and up or down, and times
// their transposes, from the same packed weights. An expert's weights are read once for all its rows.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "moe/forward.h"
#include "training/transposed.h"

namespace ktbench {

enum class Matrices { gate_up, down };  // gate_up: gate's rows, then up's

// Slot s is row[s] of the rows given; expert e has slots first[e] to first[e + 1] - 1.
struct Slots {
  const int* row;
  const int* first;
  int count;
};

struct TransposedOptions {
  const TransposedKernels* kernels;
  std::uint64_t Counters::*counter;  // of its instruction set
  bool dynamic, numa;
};

class ExpertProducts {
 public:
  ExpertProducts(std::shared_ptr<PackedExperts> experts, std::shared_ptr<Team> team, int tag);

  // How many outputs the domains write; one if each has its own columns.
  int forward_parts(Matrices which) const { return which == Matrices::down ? domains() : 1; }
  int transposed_parts(Matrices which) const { return which == Matrices::gate_up ? domains() : 1; }
  // Columns of the input rows and of the products; swapped for transposed products.
  int inputs(Matrices which) const;
  int outputs(Matrices which) const;

  // out[part][slot] = W x[row[slot]]. Calls run one by one. Throws like MoE::forward.
  void forward(Matrices which, const bf16* x, int rows, const Slots& slots, float* out, const ForwardOptions& options);
  // out[part][slot] = W^T y[row[slot]].
  void transposed(Matrices which, const float* y, const Slots& slots, float* out, const TransposedOptions& options);

  const PackedExperts& experts() const { return *experts_; }
  Counters counters();

 private:
  struct Worker {
    HugeBuffer rows, sums, scratch, panel;
    int gathered = -1;  // the group whose rows are in `rows`
    Counters counters;
  };
  struct Task {
    int domain, group, block;
  };
  // Packed rows of a matrix, and their offset in a row of y.
  struct Matrix {
    const std::byte* strips;
    std::size_t bytes;
    int rows, at;
  };

  int threads() const { return static_cast<int>(workers_.size()); }
  int domains() const { return static_cast<int>(experts_->shards().size()); }
  bool gates() const { return which_ == Matrices::gate_up; }
  Format format_of(const Geometry& g) const;
  int depth_of(const Geometry& g) const;
  int strips_of(const Geometry& g) const;
  void begin(const Slots& slots, int blocks, bool numa);
  void run(std::vector<Team::Phase> phases);
  template <class Body>
  void work(int thread, bool dynamic, bool numa, Body body);
  void reserve(int rows);
  void prepare_rows(const bf16* x, std::int64_t rows, int thread);
  void forward_task(const Task& task, Worker& worker);
  void put_products(const Task& task, int first, int strips, const float* sums);
  void transposed_task(const Task& task, Worker& worker);
  void add_matrix(const Matrix& matrix, const Geometry& g, int first, int columns, const Group& group, Worker& worker);
  void unpack(const std::byte* strip, const Format& format, int columns, int row, float* panel) const;
  Rows gathered_rows(const Task& task, Worker& worker);

  const std::shared_ptr<PackedExperts> experts_;
  const std::shared_ptr<Team> team_;
  const int tag_;
  std::mutex lock_;
  std::vector<Worker> workers_;
  Counters counted_;

  // State of the current call.
  Matrices which_{};
  Slots slots_{};
  std::vector<Group> groups_;
  int largest_ = 0, blocks_ = 0, width_ = 0;  // width: columns of a transposed product's task
  std::vector<TaskPartition> tasks_;
  float* out_ = nullptr;
  const Kernels* kernels_ = nullptr;
  std::vector<HugeBuffer> rows_;  // of each domain, in the kernels' format
  std::vector<RowFormat> formats_;
  std::vector<int> counting_;
  std::vector<float> ones_;
  const float* y_ = nullptr;
  TransposedOptions options_{};
};

}  // namespace ktbench
