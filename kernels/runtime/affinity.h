// Where threads run.
#pragma once

#include <string>
#include <vector>

namespace ktbench {

// Keeps the calling thread on one cpu from now on; false when it may not run there.
bool pin_to(int cpu);

// Requests time slices of 100 us, the shortest that Linux grants (6.12 and later; no effect before): a thread that
// shares its cpu with a busy one then runs again after tenths of a millisecond instead of milliseconds.
void ask_for_short_turns();

// The cpus on which the calling thread may run, ascending.
std::vector<int> usable_cpus();

std::string not_usable(int cpu);

}  // namespace ktbench
