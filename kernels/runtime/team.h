// Threads that run phases together, with a barrier after each. The thread that calls run() works as thread 0.
#pragma once

#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <mutex>
#include <span>

#include "runtime/waiting.h"

namespace ktbench {

class Team {
 public:
  using Phase = std::function<void(int thread)>;

  virtual ~Team() = default;
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int threads() const { return threads_; }

  // Every thread runs phase after phase. Callers take turns. The first exception of any thread is thrown here once
  // all threads are out; later phases are then skipped.
  void run(std::span<const Phase> phases);
  void run(const Phase& phase) { run(std::span(&phase, 1)); }

 protected:
  Team(int threads, std::chrono::microseconds spin);

  // Has every thread call take_part with its number and returns when thread 0, the caller, is through.
  virtual void enter() = 0;
  void take_part(int thread);

 private:
  void run_guarded(const Phase& phase, int thread);

  const int threads_;
  std::mutex turn_;
  std::span<const Phase> phases_;
  Barrier barrier_;
  std::atomic<bool> failed_{false};
  std::mutex failure_lock_;
  std::exception_ptr failure_;
};

}  // namespace ktbench
