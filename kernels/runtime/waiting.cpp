#include "runtime/waiting.h"

#include <emmintrin.h>
#include <sched.h>

namespace ktbench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int pauses_per_look = 64;   // at the clock: 1 to 3 us
constexpr int looks_per_yield = 16;

bool changed_within_pauses(const Word& word, std::uint32_t old) {
  for (int i = 0; i < pauses_per_look; ++i) {
    if (word.load(std::memory_order_acquire) != old) return true;
    _mm_pause();
  }
  return false;
}

}  // namespace

void await_change(const Word& word, std::uint32_t old, std::chrono::microseconds spin) {
  if (changed_within_pauses(word, old)) return;
  const auto deadline = Clock::now() + spin;
  for (int look = 1; Clock::now() < deadline; ++look) {
    if (changed_within_pauses(word, old)) return;
    if (look % looks_per_yield == 0) sched_yield();
  }
  word.wait(old, std::memory_order_acquire);
}

void Barrier::arrive_and_wait() {
  const std::uint32_t generation = generation_.load(std::memory_order_acquire);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 < threads_)
    return await_change(generation_, generation, spin_);
  arrived_.store(0, std::memory_order_relaxed);
  generation_.store(generation + 1, std::memory_order_release);
  generation_.notify_all();
}

}  // namespace ktbench
