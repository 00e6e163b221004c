// A team made of the OpenMP threads that the process already has: PyTorch's. Idle OpenMP threads spin for milliseconds
// on their cores; threads of our own would have to fight them for every core that both roles share.
#pragma once

#include <vector>

#include "runtime/team.h"

namespace ktbench {

class OpenMPTeam : public Team {
 public:
  // Throws std::runtime_error when no OpenMP runtime has been loaded into this process yet.
  explicit OpenMPTeam(int threads);

  // Each thread to its cpu, the calling one to the first, for good. Throws std::invalid_argument for a cpu that may not
  // be used or when their number is not that of the threads.
  void pin(const std::vector<int>& cpus);

 private:
  void enter() override;
  void join();

  std::atomic<int> granted_{0};
};

}  // namespace ktbench
