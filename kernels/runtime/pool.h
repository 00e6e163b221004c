// A team of pinned threads of its own.
#pragma once

#include <atomic>
#include <thread>
#include <vector>

#include "runtime/team.h"

namespace ktbench {

class ThreadPool : public Team {
 public:
  // One thread per entry of `cpus`; a cpu may appear twice. Throws std::invalid_argument when one may not be used.
  ThreadPool(std::vector<int> cpus, std::chrono::microseconds spin);
  ~ThreadPool() override;

  const std::vector<int>& cpus() const { return cpus_; }

 private:
  void enter() override;
  void serve(int thread);

  const std::vector<int> cpus_;
  const std::chrono::microseconds spin_;
  alignas(64) Word epoch_{0};
  std::atomic<bool> closing_{false};
  std::vector<std::jthread> workers_;
};

}  // namespace ktbench
