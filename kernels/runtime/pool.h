// Pinned threads that run phases together. The thread that calls run() works as thread 0.
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "runtime/waiting.h"

namespace ktbench {

class ThreadPool {
 public:
  using Phase = std::function<void(int thread)>;

  // One thread per entry of `cpus`; a cpu may appear twice. Throws std::invalid_argument when one may not be used.
  ThreadPool(std::vector<int> cpus, std::chrono::microseconds spin);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(cpus_.size()); }
  const std::vector<int>& cpus() const { return cpus_; }

  // Every thread runs phase after phase, with a barrier after each. Callers take turns. The first exception of any
  // thread is thrown here once all threads are out; later phases are then skipped.
  void run(std::span<const Phase> phases);
  void run(const Phase& phase) { run(std::span(&phase, 1)); }

 private:
  void serve(int thread);
  void take_part(int thread);
  void run_guarded(const Phase& phase, int thread);

  const std::vector<int> cpus_;
  const std::chrono::microseconds spin_;
  std::mutex turn_;
  std::span<const Phase> phases_;
  Barrier barrier_;
  alignas(64) Word epoch_{0};
  std::atomic<bool> closing_{false};
  std::atomic<bool> failed_{false};
  std::mutex failure_lock_;
  std::exception_ptr failure_;
  std::vector<std::jthread> workers_;
};

}  // namespace ktbench
