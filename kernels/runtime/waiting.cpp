#include "runtime/waiting.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>

namespace ktbench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int pauses_per_look = 64;  // between clock readings: 1 to 3 us
constexpr int looks_per_yield = 16;

void futex(std::atomic<std::uint32_t>& word, int operation, std::uint32_t value) {
  syscall(SYS_futex, &word, operation | FUTEX_PRIVATE_FLAG, value, nullptr, nullptr, 0);
}

}  // namespace

// Sequential consistency here and in park(): either the new value keeps a thread from parking, or it is seen parked.
void EventCount::advance() {
  value_.fetch_add(1, std::memory_order_seq_cst);
  if (parked_.load(std::memory_order_seq_cst)) futex(value_, FUTEX_WAKE, INT_MAX);
}

void EventCount::await_change(std::uint32_t old, std::chrono::microseconds spin) {
  if (changes_within_pauses(old)) return;
  const auto deadline = Clock::now() + spin;
  for (int look = 1; Clock::now() < deadline; ++look) {
    if (changes_within_pauses(old)) return;
    if (look % looks_per_yield == 0) sched_yield();
  }
  park(old);
}

bool EventCount::changes_within_pauses(std::uint32_t old) const {
  for (int i = 0; i < pauses_per_look; ++i) {
    if (value() != old) return true;
    spin_pause();
  }
  return false;
}

void EventCount::park(std::uint32_t old) {
  parked_.fetch_add(1, std::memory_order_seq_cst);
  while (value_.load(std::memory_order_seq_cst) == old) futex(value_, FUTEX_WAIT, old);
  parked_.fetch_sub(1, std::memory_order_relaxed);
}

bool Barrier::arrive() {
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 < threads_) return false;
  arrived_.store(0, std::memory_order_relaxed);
  return true;
}

void Barrier::arrive_and_wait() {
  const std::uint32_t meeting = meetings_.value();
  arrive() ? meetings_.advance() : meetings_.await_change(meeting, spin_);
}

}  // namespace ktbench
