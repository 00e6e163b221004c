#include "runtime/affinity.h"

#include <sched.h>

namespace ktbench {

bool pin_to(int cpu) {
  if (cpu < 0 || cpu >= CPU_SETSIZE) return false;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  return sched_setaffinity(0, sizeof set, &set) == 0;
}

std::string not_usable(int cpu) { return "cpu " + std::to_string(cpu) + " is not one this process may run on"; }

}  // namespace ktbench
