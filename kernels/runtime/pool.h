// A team with its own pinned threads.
#pragma once

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "runtime/team.h"

namespace ktbench {

class ThreadPool : public Team {
 public:
  // One thread per entry of `cpus`; a cpu may appear twice. Idle threads spin for `spin`, then park. With `own` all are
  // threads of the pool, and a submitted job runs by itself. Without, a waiting thread works as thread 0 on the first
  // cpu: the other threads begin a submitted job at once and get as far as its first barrier. Throws
  // std::invalid_argument if a cpu may not be used.
  ThreadPool(std::vector<int> cpus, std::chrono::microseconds spin, bool own = false);
  // Completes the running job and drops the others.
  ~ThreadPool() override;

  const std::vector<int>& cpus() const { return cpus_; }

 private:
  void enter() override;
  void serve(int thread);
  void close();

  const std::vector<int> cpus_;
  const std::chrono::microseconds spin_;
  std::atomic<bool> closing_{false};
  std::vector<std::jthread> workers_;
};

}  // namespace ktbench
