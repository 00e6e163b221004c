// From how many rows on each loop is fastest: shipped values for known CPUs, until this one is measured
// (set_crossover).
#pragma once

#include <span>

#include "runtime/isa.h"

namespace ktbench {

// Applies them to all kernels of `isas`. Unknown CPUs keep the defaults of the kernels.
void set_shipped_crossovers(std::span<const Isa> isas, const Cpu& cpu);

}  // namespace ktbench
