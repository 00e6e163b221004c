// When a team's jobs began and ended, for timelines.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace ktbench {

// CLOCK_MONOTONIC, which Python's time.perf_counter_ns also reads.
inline std::int64_t monotonic_ns() {
  using namespace std::chrono;
  return duration_cast<nanoseconds>(steady_clock::now().time_since_epoch()).count();
}

struct Span {
  std::int64_t tag;
  std::int64_t begin_ns;
  std::int64_t end_ns;
};

// The last 65,536 spans. Recording takes a lock that is held only for a recording or a swap of pointers.
class Spans {
 public:
  static constexpr std::size_t kept = 65536;

  void note(const Span& span);
  // Spans recorded since the last take(), oldest first, except those overwritten in the ring.
  std::vector<Span> take();
  std::int64_t busy_ns() const { return busy_ns_.load(std::memory_order_relaxed); }  // summed over all ever noted

 private:
  using Ring = std::array<Span, kept>;

  std::mutex lock_;
  std::unique_ptr<Ring> ring_ = std::make_unique_for_overwrite<Ring>();  // pages are touched as jobs come
  std::uint64_t noted_ = 0;
  std::atomic<std::int64_t> busy_ns_{0};
};

}  // namespace ktbench
