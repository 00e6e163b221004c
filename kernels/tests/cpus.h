// Four threads' places. Two threads per cpu where there are few: races need company.
#pragma once

#include <chrono>
#include <vector>

#include "runtime/affinity.h"

namespace ktbench::tests {

inline std::vector<int> four_cpus() {
  const std::vector<int> usable = usable_cpus();
  std::vector<int> cpus;
  while (cpus.size() < 4) cpus.push_back(usable[cpus.size() % usable.size()]);
  return cpus;
}

constexpr auto brief = std::chrono::microseconds(20);

}  // namespace ktbench::tests
