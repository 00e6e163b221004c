#include "runtime/crossover.h"

namespace ktbench {
namespace {

constexpr int zen4 = 0x19, zen5 = 0x1a;
constexpr int core = 6;  // every Core and Xeon

struct Shipped {
  std::string_view maker;
  int family;
  std::string_view feature;
    std::string_view precisions;  // prefix of their names
  Crossover crossover;
};

// AMD: one row streams fastest without prefetches. With them bf16 on a Zen 5 takes, at 8, 16 and 24 rows, 16.8, 18.3
// and 22.4 ms, without 20.6, 43.5 and 58.0, in register blocks 19.4, 18.8 and 22.5; for other precisions it is assumed.
// Intel: calibrated on two cores of a Granite Rapids; others, including Sapphire Rapids, are assumed to be similar.
constexpr Shipped shipped[] = {
    {amd, zen4, "avx512", "bf16", {2, 25}}, {amd, zen4, "avx512", "int8", {2, 25}},
    {amd, zen4, "avx512", "int4_g", {2, 13}}, {amd, zen4, "avx512", "q", {2, 5}},
    {amd, zen5, "avx512", "bf16", {2, 25}}, {amd, zen5, "avx512", "int8", {2, 25}},
    {amd, zen5, "avx512", "int4_g", {2, 13}}, {amd, zen5, "avx512", "q", {2, 5}},
    {intel, core, "avx512", "int8", {1, 16}}, {intel, core, "avx512", "q4_0", {1, 24}},
    {intel, core, "avx512", "fp8", {1, 32}},
    {intel, core, "avx2", "int4_g", {1, 24}}, {intel, core, "avx2", "q4_0", {1, 20}},
    {intel, core, "amx", "int8", {1, 16}}, {intel, core, "amx", "int4_g", {1, 12}},
};

}  // namespace

void set_shipped_crossovers(std::span<const Isa> isas, const Cpu& cpu) {
  for (const Shipped& row : shipped)
    for (const Isa& isa : isas)
      if (row.maker == cpu.maker && row.family == cpu.family && isa.kernels && isa.feature &&
          isa.feature == row.feature)
        for (int i = 0; i < format_count; ++i)
          if (std::string_view(format_table[i].name).starts_with(row.precisions))
            isa.kernels->of_row[i].crossover = row.crossover;
}

}  // namespace ktbench
