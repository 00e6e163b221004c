#include "runtime/affinity.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace ktbench {
namespace {

// struct sched_attr of sched_setattr(2), which older C libraries lack.
struct SchedulingAttributes {
  std::uint32_t size = sizeof(SchedulingAttributes), policy = 0;
  std::uint64_t flags = 0;
  std::int32_t nice = 0;
  std::uint32_t priority = 0;
  std::uint64_t runtime_ns = 0, deadline_ns = 0, period_ns = 0;
};

}  // namespace

bool pin_to(int cpu) {
  if (cpu < 0 || cpu >= CPU_SETSIZE) return false;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  return sched_setaffinity(0, sizeof set, &set) == 0;
}

void ask_for_short_turns() {
  SchedulingAttributes now;
  if (syscall(SYS_sched_getattr, 0, &now, sizeof now, 0) || now.policy != SCHED_OTHER) return;
  now.runtime_ns = 100'000;
  syscall(SYS_sched_setattr, 0, &now, 0);
}

std::vector<int> usable_cpus() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  sched_getaffinity(0, sizeof allowed, &allowed);
  std::vector<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &allowed)) cpus.push_back(cpu);
  return cpus;
}

std::string not_usable(int cpu) { return "cpu " + std::to_string(cpu) + " is not one this process may run on"; }

}  // namespace ktbench
