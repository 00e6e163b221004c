// Every format, and the granted kernels of each.
#pragma once

#include <cstring>
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

// Where a super-block has its scales of half precision.
inline std::vector<int> halves_of(Numbers numbers) {
  using enum Numbers;
  switch (numbers) {
    case q2_k: return {80, 82};
    case q3_k:
    case iq2:
    case iq1: return {108};
    case q4_k:
    case q5_k: return {0, 2};
    case q6_k: return {208};
    case int4_zp: return {0, 19, 38, 57, 76, 95, 114, 133};
    case nvfp4: return {};
    default: return {0};
  }
}

// Of a format that numbers are not quantised to: any bytes at all, but scales of ordinary size.
inline std::vector<std::byte> blocks_of(const std::vector<bf16>& matrix, const Format& format) {
  std::vector<std::byte> bytes(matrix.size() / format.group * format.block_bytes());
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(matrix[i] * 37 >> 3);
  for (std::size_t at = 0; at < bytes.size(); at += format.block_bytes()) {
    for (const int half : halves_of(format.numbers)) bytes[at + half + 1] = static_cast<std::byte>(0x08);  // 2^-13 to 2^-12
    if (format.numbers != Numbers::nvfp4) continue;
    const float whole = 0x1p-8f;
    std::memcpy(&bytes[at], &whole, sizeof whole);
    for (int group = 0; group < 16; ++group) bytes[at + 4 + group] &= static_cast<std::byte>(0xbf);  // of e4m3, below 2
  }
  return bytes;
}

}  // namespace ktbench::tests
