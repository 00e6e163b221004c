#include "runtime/pool.h"

#include <sched.h>

#include <stdexcept>
#include <string>
#include <utility>

#include "runtime/affinity.h"

namespace ktbench {
namespace {

void check_usable(const std::vector<int>& cpus) {
  cpu_set_t allowed;
  sched_getaffinity(0, sizeof allowed, &allowed);
  for (const int cpu : cpus)
    if (cpu < 0 || cpu >= CPU_SETSIZE || !CPU_ISSET(cpu, &allowed))
      throw std::invalid_argument(not_usable(cpu));
}

// The calling thread sits on the pool's first cpu while it works, and gets its own affinity back: threads that it
// starts later (an OpenMP team, say) would otherwise inherit a single core.
class Seat {
 public:
  explicit Seat(int cpu) : moved_(sched_getcpu() != cpu) {
    if (!moved_) return;
    sched_getaffinity(0, sizeof before_, &before_);
    pin_to(cpu);
  }
  ~Seat() {
    if (moved_) sched_setaffinity(0, sizeof before_, &before_);
  }

 private:
  const bool moved_;
  cpu_set_t before_;
};

}  // namespace

ThreadPool::ThreadPool(std::vector<int> cpus, std::chrono::microseconds spin)
    : Team(static_cast<int>(cpus.size()), spin), cpus_(std::move(cpus)), spin_(spin) {
  check_usable(cpus_);
  for (int thread = 1; thread < threads(); ++thread) workers_.emplace_back([this, thread] { serve(thread); });
}

ThreadPool::~ThreadPool() {
  closing_.store(true, std::memory_order_relaxed);
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
}

void ThreadPool::enter() {
  const Seat seat(cpus_.front());
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  take_part(0);
}

void ThreadPool::serve(int thread) {
  pin_to(cpus_[thread]);
  for (std::uint32_t seen = 0;; ++seen) {
    await_change(epoch_, seen, spin_);
    if (closing_.load(std::memory_order_relaxed)) return;
    take_part(thread);
  }
}

}  // namespace ktbench
