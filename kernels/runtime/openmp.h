// A team made of the OpenMP threads that the process already has: PyTorch's. Idle OpenMP threads spin for milliseconds
// on their cores; separate threads would compete with them for every core that both roles share. They work only for a
// calling thread: a submitted job begins when a thread waits for it, and never runs otherwise. Roles that share cores
// cannot overlap. GNU OpenMP keeps a set of threads for each calling thread, so the same thread should always wait.
#pragma once

#include <atomic>

#include "runtime/team.h"

namespace ktbench {

class OpenMPTeam : public Team {
 public:
  // Throws std::runtime_error if no OpenMP runtime has been loaded into this process yet, and in a child of a process
  // whose OpenMP teams have worked. A job throws it if the runtime grants fewer threads.
  explicit OpenMPTeam(int threads);

 private:
  void enter() override;
  void join();

  std::atomic<int> granted_{0};
};

}  // namespace ktbench
