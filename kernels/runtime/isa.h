// What this machine grants: the CPU has it, the operating system saves its registers, the kernel permits it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/kernels.h"

namespace ktbench {

struct Isa {
  std::string name;
  const KernelSet* kernels;
  std::string missing;  // empty when granted, else the reason in one line
};

// All of them, found out once.
const std::vector<Isa>& isas();

// Throws std::invalid_argument for an unknown name, std::runtime_error with the reason for one that is not granted.
const Isa& granted_isa(std::string_view name);

bool granted(std::string_view name);

// Kernels of one ISA for a precision. Throws as granted_isa does, and std::invalid_argument where it has none.
const Kernels& kernels_of(std::string_view name, Precision precision);

// Whether it is granted and has kernels for the precision.
bool has_kernels(std::string_view name, Precision precision);

// Whether few rows should read two strips at once. Two streams of a thread with prefetches read 36 GB/s where one reads 30
// on Granite Rapids; on Zen 4 one stream without is the fastest (kernels of one token: 100 against 83 to 92 % of the roof
// with four).
bool reads_pairs();

// Those of the fastest AVX-512 variant that is granted.
const Kernels& fastest_avx512(Precision precision);

}  // namespace ktbench
