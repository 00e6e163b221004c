// From how many rows on which loop is the fastest: what ships for known CPUs, until this one is measured (set_crossover).
#pragma once

#include <span>

#include "runtime/isa.h"

namespace ktbench {

// To all that `isas` have for the CPU. Unknown CPUs keep the defaults that their kernels come with.
void set_shipped_crossovers(std::span<const Isa> isas, const Cpu& cpu);

}  // namespace ktbench
