// Every format, and the granted kernels of each.
#pragma once

#include "core/format_names.h"
#include "runtime/isa.h"

namespace ktbench::tests {

struct NamedKernels {
  std::string name;
  const Kernels* kernels;
};

inline std::vector<NamedKernels> granted_kernels(const Format& format) {
  std::vector<NamedKernels> all;
  for (const Isa& isa : isas())
    if (has_kernels(isa.name, format)) all.push_back({isa.name, &kernels_of(isa.name, format)});
  return all;
}

}  // namespace ktbench::tests
