// Where threads run.
#pragma once

#include <string>
#include <vector>

namespace ktbench {

// Keeps the calling thread on one cpu from now on; false when it may not run there.
bool pin_to(int cpu);

// Requests time slices of 100 us, the shortest that Linux grants (6.12 and later; before, nothing changes): a thread
// that shares its cpu with a busy one is then back after tenths of a millisecond where it was milliseconds.
void ask_for_short_turns();

// Those that the calling thread may run on, ascending.
std::vector<int> usable_cpus();

std::string not_usable(int cpu);

}  // namespace ktbench
