#include "runtime/crossover.h"

namespace ktbench {
namespace {

constexpr int zen4 = 0x19, zen5 = 0x1a, golden_cove = 6;

struct Shipped {
  std::string_view maker;
  int family;
  std::string_view feature;
  std::string_view precisions;  // that its name begins with
  Crossover crossover;
};

// AMD: one row streams fastest without prefetches. With them bf16 on a Zen 5 takes, at 8, 16 and 24 rows, 16.8, 18.3 and
// 22.4 ms, without 20.6, 43.5 and 58.0, in register blocks 19.4, 18.8 and 22.5.
constexpr Shipped shipped[] = {
    {amd, zen4, "avx512", "bf16", {2, 25}}, {amd, zen4, "avx512", "int8", {2, 25}},
    {amd, zen4, "avx512", "int4", {2, 13}}, {amd, zen4, "avx512", "q", {2, 5}},
    {amd, zen5, "avx512", "bf16", {2, 25}}, {amd, zen5, "avx512", "int8", {2, 25}},
    {amd, zen5, "avx512", "int4", {2, 13}}, {amd, zen5, "avx512", "q", {2, 5}},
};

}  // namespace

void set_shipped_crossovers(std::span<const Isa> isas, const Cpu& cpu) {
  for (const Shipped& row : shipped)
    for (const Isa& isa : isas)
      if (row.maker == cpu.maker && row.family == cpu.family && isa.feature && isa.feature == row.feature)
        for (int i = 0; i < format_count; ++i)
          if (std::string_view(format_table[i].name).starts_with(row.precisions))
            isa.kernels->of_row[i].crossover = row.crossover;
}

}  // namespace ktbench
