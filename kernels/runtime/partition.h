// Tasks 0..n-1 partitioned over threads as contiguous ranges of equal count. Static: each thread works through its own.
// Dynamic: a thread that has finished steals the far half of the longest remaining range, so ranges stay contiguous,
// and a thread runs neighbouring tasks, which share activations, in succession.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/counters.h"

namespace ktbench {

class TaskPartition {
 public:
  explicit TaskPartition(int threads) : left_(threads) {}

  void assign(int tasks);

  template <class Task>
  void work(int thread, bool dynamic, Counters& counters, Task task) {
    dynamic ? work_dynamic(thread, counters, task) : work_static(thread, counters, task);
  }

 private:
  struct Range {
    std::uint32_t begin, end;
  };
  struct alignas(64) Left {
    std::atomic<std::uint64_t> range{0};
  };

  static Range unpack(std::uint64_t packed) {
    return {static_cast<std::uint32_t>(packed), static_cast<std::uint32_t>(packed >> 32)};
  }
  static std::uint64_t pack(Range r) { return r.begin | static_cast<std::uint64_t>(r.end) << 32; }

  std::optional<int> take_own(int thread);
  bool steal_half(int thread, Counters& counters);
  int most_loaded() const;

  template <class Task>
  void work_static(int thread, Counters& counters, Task task) {
    const Range own = unpack(left_[thread].range.load(std::memory_order_relaxed));
    for (std::uint32_t i = own.begin; i < own.end; ++i) task(static_cast<int>(i));
    counters.tasks_static += own.end - own.begin;
  }

  template <class Task>
  void work_dynamic(int thread, Counters& counters, Task task) {
    do {
      while (const std::optional<int> i = take_own(thread)) {
        task(*i);
        ++counters.tasks_dynamic;
      }
    } while (steal_half(thread, counters));
  }

  std::vector<Left> left_;
};

}  // namespace ktbench
