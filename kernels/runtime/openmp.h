// A team made of the OpenMP threads that the process already has: PyTorch's. Idle OpenMP threads spin for milliseconds
// on their cores; threads of our own would have to fight them for every core that both roles share.
#pragma once

#include "runtime/team.h"

namespace ktbench {

class OpenMPTeam : public Team {
 public:
  // Throws std::runtime_error when no OpenMP runtime has been loaded into this process yet.
  explicit OpenMPTeam(int threads);

 private:
  void enter() override;
  void join();

  std::atomic<int> granted_{0};
};

}  // namespace ktbench
