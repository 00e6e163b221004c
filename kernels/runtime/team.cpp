#include "runtime/team.h"

#include <stdexcept>
#include <utility>

namespace ktbench {

Team::Team(int threads, std::chrono::microseconds spin) : threads_(threads), barrier_(threads, spin) {
  if (threads < 1) throw std::invalid_argument("a team needs at least one thread");
}

void Team::run(std::span<const Phase> phases) {
  const std::lock_guard turn(turn_);
  phases_ = phases;
  enter();
  if (failed_.exchange(false)) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void Team::take_part(int thread) {
  const std::span<const Phase> phases = phases_;
  for (const Phase& phase : phases) {
    run_guarded(phase, thread);
    barrier_.arrive_and_wait();
  }
}

void Team::run_guarded(const Phase& phase, int thread) try {
  if (!failed_.load(std::memory_order_relaxed)) phase(thread);
} catch (...) {
  const std::lock_guard lock(failure_lock_);
  if (!failed_.exchange(true)) failure_ = std::current_exception();
}

}  // namespace ktbench
