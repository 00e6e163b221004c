// The instruction sets, one row each, and which of them this machine grants: the CPU has it, the operating system saves
// its registers, the kernel permits it.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/kernels.h"
#include "dense/attend.h"
#include "dense/rows.h"
#include "training/transposed.h"

namespace ktbench {

// A bit of CPUID, by the flag's name in /proc/cpuinfo. No name, no flag.
struct CpuFlag {
  enum Register { eax, ebx, ecx, edx };

  const char* name = nullptr;
  unsigned leaf = 0, subleaf = 0;
  Register where = eax;
  int bit = 0;
};

struct IsaTraits {
  const char* name = nullptr;
  const char* feature = nullptr;  // the engine's toggle that runs it and the name of its arithmetic roof; null: neither
  std::uint64_t Counters::*counter = nullptr;  // what its MoE kernels count
  KernelSet* kernels = nullptr;  // null: the build leaves the instruction set out
  const RowKernels* rows = nullptr;  // null: none of its own
  const AttentionKernels* attention = nullptr;
  const TransposedKernels* transposed = nullptr;
  Burn burn_bf16 = nullptr, burn_int8 = nullptr;  // for the roofs of its feature; null: none
  Burn burn_blocks = nullptr;                     // the same for int8 in blocks, by other instructions
  const char* parent = nullptr;                   // the instruction set that it extends
  CpuFlag flags[4] = {};
  std::uint64_t saved_state = 0;  // bits of XCR0
  const char* state = nullptr;    // what they stand for
  std::string (*permission)() = nullptr;  // of the kernel, beyond all that: "" or the reason
};

struct Isa : IsaTraits {
  std::string missing;  // empty when granted, else the reason in one line
};

// As CPUID names it; empty elsewhere.
struct Cpu {
  std::string maker;
  int family = 0;
};
inline constexpr std::string_view intel = "GenuineIntel", amd = "AuthenticAMD";

const Cpu& cpu();

// All rows, slower ones before faster ones, found out once.
const std::vector<Isa>& isas();

// Throws std::invalid_argument for an unknown name, std::runtime_error with the reason for one that is not granted.
const Isa& granted_isa(std::string_view name);

bool granted(std::string_view name);

// Kernels of one ISA for a format. Throws as granted_isa does, and std::invalid_argument where it has none.
const Kernels& kernels_of(std::string_view name, const Format& format);

// From which numbers of rows on they use which loops, for all calls that begin later. Throws as kernels_of does.
void set_crossover(std::string_view name, const Format& format, const Crossover& crossover);

// Whether it is granted and has kernels for the format.
bool has_kernels(std::string_view name, const Format& format);

// The fastest granted one of a feature that has kernels for the format. Throws as kernels_of does.
const Isa& fastest_isa(std::string_view feature, const Format& format);
const Kernels& fastest_of_feature(std::string_view feature, const Format& format);

// Those of the fastest ISA that is granted for so many tokens.
const Kernels& fastest_kernels(const Format& format, int tokens);

// Of a decode step's small operations: those of the ISA named, or of the fastest that is granted. Throw as granted_isa
// does, and std::invalid_argument for an ISA without.
const RowKernels& row_kernels(const std::optional<std::string>& isa);
const AttentionKernels& attention_kernels(const std::optional<std::string>& isa);

// The ISA named, or the nearest one that it extends with kernels for transposed products: the reference at last. Throws
// as granted_isa does.
const Isa& transposing_isa(std::string_view name);

}  // namespace ktbench
