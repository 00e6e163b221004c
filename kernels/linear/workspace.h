// The working memory of the linear layers on one team. A model has hundreds of layers, which run one after the other,
// so they share it.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "core/counters.h"
#include "runtime/memory.h"
#include "runtime/partition.h"
#include "runtime/team.h"

namespace ktbench {

struct Workspace {
  struct Worker {
    HugeBuffer buffers;  // sums, the kernels' scratch memory, activations
    Counters counters;
  };

  explicit Workspace(int threads) : workers(threads), tasks(threads) {}

  std::mutex lock;  // held during a call
  HugeBuffer rows;  // activations in the kernels' format
  std::vector<Worker> workers;
  TaskPartition tasks;
};

}  // namespace ktbench
