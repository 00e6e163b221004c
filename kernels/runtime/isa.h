// What this machine grants: the CPU has it, the operating system saves its registers, the kernel permits it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/kernels.h"

namespace ktbench {

struct Isa {
  std::string name;
  const Kernels* kernels;
  std::string missing;  // empty when granted, else the reason in one line
};

// All of them, found out once.
const std::vector<Isa>& isas();

// Throws std::invalid_argument for an unknown name, std::runtime_error with the reason for one that is not granted.
const Isa& granted_isa(std::string_view name);

bool granted(std::string_view name);

}  // namespace ktbench
