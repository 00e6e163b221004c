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
    const char* feature = nullptr;  // the toggle that runs it, and the name of its arithmetic roof; null: neither
    std::uint64_t Counters::*counter = nullptr;  // of its MoE kernels
    KernelSet* kernels = nullptr;  // null: the build lacks the instruction set
  const RowKernels* rows = nullptr;  // null: none of its own
  const AttentionKernels* attention = nullptr;
  const TransposedKernels* transposed = nullptr;
  Burn burn_bf16 = nullptr, burn_int8 = nullptr;  // for the roofs of its feature; null: none
  Burn burn_blocks = nullptr;                     // the same for int8 in blocks, by other instructions
  const char* parent = nullptr;                   // the instruction set that it extends
  CpuFlag flags[4] = {};
  std::uint64_t saved_state = 0;  // bits of XCR0
  const char* state = nullptr;    // what they stand for
    std::string (*permission)() = nullptr;  // additional permission by the kernel: "" or the reason
};

struct Isa : IsaTraits {
    std::string missing;  // empty if granted, else the reason in one line
};

// The CPU's name from CPUID; empty on other architectures.
struct Cpu {
  std::string maker;
  int family = 0;
};
inline constexpr std::string_view intel = "GenuineIntel", amd = "AuthenticAMD";

const Cpu& cpu();

// All rows, slower ones before faster ones, detected once.
const std::vector<Isa>& isas();

// Throws std::invalid_argument for an unknown name, std::runtime_error with the reason for one that is not granted.
const Isa& granted_isa(std::string_view name);

bool granted(std::string_view name);

// Kernels of one ISA for a format. Throws like granted_isa, and std::invalid_argument if it has none.
const Kernels& kernels_of(std::string_view name, const Format& format);

// Sets from how many rows on they use each loop, for all later calls. Throws like kernels_of.
void set_crossover(std::string_view name, const Format& format, const Crossover& crossover);

// Whether it is granted and has kernels for the format.
bool has_kernels(std::string_view name, const Format& format);

// The fastest granted one of a feature that has kernels for the format. Throws like kernels_of.
const Isa& fastest_isa(std::string_view feature, const Format& format);
const Kernels& fastest_of_feature(std::string_view feature, const Format& format);

// Those of the fastest granted ISA for this many tokens.
const Kernels& fastest_kernels(const Format& format, int tokens);

// A decode step's small operations: those of the named ISA, or of the fastest granted one. Throw like granted_isa, and
// std::invalid_argument for an ISA without them.
const RowKernels& row_kernels(const std::optional<std::string>& isa);
const AttentionKernels& attention_kernels(const std::optional<std::string>& isa);

// The named ISA, or the nearest one it extends that has kernels for transposed products, ultimately the reference.
// Throws like granted_isa.
const Isa& transposing_isa(std::string_view name);

}  // namespace ktbench
