// Where threads run.
#pragma once

#include <string>

namespace ktbench {

// Keeps the calling thread on one cpu from now on; false when it may not run there.
bool pin_to(int cpu);

std::string not_usable(int cpu);

}  // namespace ktbench
