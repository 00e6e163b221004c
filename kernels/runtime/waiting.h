// Waiting for another thread: spin, yield now and then, park after a while.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace ktbench {

// Spares the core's other thread while a loop spins.
inline void spin_pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// A counter for threads to wait on, on a separate cache line. Not std::atomic's wait and notify, where all waits of a
// process share a few waiter counts, so that each notify is a system call while any thread is parked anywhere.
class alignas(64) EventCount {
 public:
  std::uint32_t value() const { return value_.load(std::memory_order_acquire); }

  // A release: a thread that reads the new value sees all writes before it. Wakes parked threads.
  void advance();

  // Returns once value() != old. The spin is bounded in time, so no dedicated core is assumed.
  void await_change(std::uint32_t old, std::chrono::microseconds spin);

 private:
  bool changes_within_pauses(std::uint32_t old) const;
  void park(std::uint32_t old);

  std::atomic<std::uint32_t> value_{0};
  std::atomic<std::uint32_t> parked_{0};
};

// A barrier for all threads of a team.
class Barrier {
 public:
  Barrier(int threads, std::chrono::microseconds spin) : threads_(threads), spin_(spin) {}

  // Does not wait. True for the last thread to arrive; the others pass when it advances the count.
  bool arrive();
  void arrive_and_wait();

 private:
  const std::uint32_t threads_;
  const std::chrono::microseconds spin_;
  alignas(64) std::atomic<std::uint32_t> arrived_{0};
  EventCount meetings_;
};

}  // namespace ktbench
