#include "runtime/pool.h"

#include <sched.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "runtime/affinity.h"

namespace ktbench {
namespace {

void check_usable(const std::vector<int>& cpus) {
  const std::vector<int> usable = usable_cpus();
  for (const int cpu : cpus)
    if (!std::binary_search(usable.begin(), usable.end(), cpu)) throw std::invalid_argument(not_usable(cpu));
}

// The calling thread runs on the pool's first cpu while it works, and then gets its own affinity back: threads that it
// starts later (such as an OpenMP team) would otherwise inherit a single core.
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

ThreadPool::ThreadPool(std::vector<int> cpus, std::chrono::microseconds spin, bool own)
    : Team(static_cast<int>(cpus.size()), spin, own ? Thread0::own : Thread0::caller),
      cpus_(std::move(cpus)),
      spin_(spin) {
  check_usable(cpus_);
  try {
    for (int thread = own ? 0 : 1; thread < threads(); ++thread)
      workers_.emplace_back([this, thread] { serve(thread); });
  } catch (...) {
        close();  // the started threads would never end
    throw;
  }
}

ThreadPool::~ThreadPool() {
  if (!in_own_process()) {
    // The threads do not exist here, and their ids may belong to new ones: they may be neither joined nor detached.
    static_cast<void>(new std::vector<std::jthread>(std::move(workers_)));
    return;
  }
  settle();
  close();
}

void ThreadPool::close() {
  closing_.store(true, std::memory_order_relaxed);
  begun_.advance();
}

void ThreadPool::enter() {
  const Seat seat(cpus_.front());
  take_part(0);
}

void ThreadPool::serve(int thread) {
  pin_to(cpus_[thread]);
  ask_for_short_turns();
  for (std::uint32_t seen = 0;; ++seen) {
    begun_.await_change(seen, spin_);
    if (closing_.load(std::memory_order_relaxed)) return;
    take_part(thread);
  }
}

}  // namespace ktbench
