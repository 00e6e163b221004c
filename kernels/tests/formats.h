// Every format, and the granted kernels of each.
#pragma once

#include <vector>

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

// Of a format that numbers are not quantised to: any bytes at all, but scales of ordinary size.
inline std::vector<std::byte> blocks_of(const std::vector<bf16>& matrix, const Format& format) {
  std::vector<std::byte> bytes(matrix.size() / format.group * format.block_bytes());
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(matrix[i] * 37 >> 3);
  const int scale_at = format.numbers == ktbench::Numbers::q2_k   ? 80
                       : format.numbers == ktbench::Numbers::q3_k ? 108
                       : format.numbers == ktbench::Numbers::q6_k ? 208
                                                         : 0;
  const int halves = format.minima_group() ? 2 : 1;
  for (std::size_t at = scale_at; at < bytes.size(); at += format.block_bytes())
    for (int i = 0; i < halves; ++i) bytes[at + 2 * i + 1] = static_cast<std::byte>(0x08);  // 2^-13 to 2^-12
  return bytes;
}

}  // namespace ktbench::tests
