#include "runtime/partition.h"

namespace ktbench {

void TaskPartition::assign(int tasks) {
  const auto threads = static_cast<std::int64_t>(left_.size());
  for (std::int64_t t = 0; t < threads; ++t) {
    const Range range{static_cast<std::uint32_t>(tasks * t / threads),
                      static_cast<std::uint32_t>(tasks * (t + 1) / threads)};
    left_[t].range.store(pack(range), std::memory_order_relaxed);
  }
}

std::optional<int> TaskPartition::take_own(int thread) {
  std::atomic<std::uint64_t>& own = left_[thread].range;
  std::uint64_t seen = own.load(std::memory_order_relaxed);
  for (;;) {
    const Range range = unpack(seen);
    if (range.begin == range.end) return std::nullopt;
    if (own.compare_exchange_weak(seen, pack({range.begin + 1, range.end}), std::memory_order_relaxed))
      return static_cast<int>(range.begin);
  }
}

int TaskPartition::most_loaded() const {
  int victim = 0;
  std::uint32_t most = 0;
  for (std::size_t t = 0; t < left_.size(); ++t) {
    const Range range = unpack(left_[t].range.load(std::memory_order_relaxed));
    if (range.end - range.begin > most) most = range.end - range.begin, victim = static_cast<int>(t);
  }
  return most ? victim : -1;
}

// False if no range has a task left. A task index is in exactly one range or taken, so a range can only be installed by
// its own thread while it is empty: nothing is lost and nothing runs twice.
bool TaskPartition::steal_half(int thread, Counters& counters) {
  for (int victim = most_loaded(); victim >= 0; victim = most_loaded()) {
    std::uint64_t seen = left_[victim].range.load(std::memory_order_relaxed);
    const Range range = unpack(seen);
    if (range.begin == range.end) continue;
    const std::uint32_t middle = range.begin + (range.end - range.begin) / 2;
    if (!left_[victim].range.compare_exchange_strong(seen, pack({range.begin, middle}), std::memory_order_relaxed))
      continue;
    left_[thread].range.store(pack({middle, range.end}), std::memory_order_relaxed);
    counters.tasks_stolen += range.end - middle;
    return true;
  }
  return false;
}

}  // namespace ktbench
