// What the linear layers on one team need beside their weights. A model has hundreds of them and they run one after the
// other, so they share it.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "core/counters.h"
#include "runtime/memory.h"
#include "runtime/shares.h"
#include "runtime/team.h"

namespace ktbench {

struct Workspace {
  struct Worker {
    HugeBuffer room;  // sums, the kernels' scratch memory, activations
    Counters counters;
  };

  explicit Workspace(int threads) : workers(threads), shares(threads) {}

  // The team's, which lives as long as anybody holds it; whoever does must keep the team, too.
  static std::shared_ptr<Workspace> of(const Team& team);

  std::mutex lock;  // held during a call
  HugeBuffer rows;  // activations as the kernels want them
  std::vector<Worker> workers;
  Shares shares;
};

}  // namespace ktbench
