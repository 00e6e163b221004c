#include "runtime/isa.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <stdexcept>

namespace ktbench {
namespace {

struct Leaf {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Leaf cpuid(unsigned leaf, unsigned subleaf = 0) {
  Leaf l;
  __get_cpuid_count(leaf, subleaf, &l.eax, &l.ebx, &l.ecx, &l.edx);
  return l;
}

bool bit(std::uint64_t word, int n) { return word >> n & 1; }

// XCR0: which register state the operating system saves.
std::uint64_t saved_state() {
  if (!bit(cpuid(1).ecx, 27)) return 0;  // OSXSAVE
  unsigned low, high;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low | static_cast<std::uint64_t>(high) << 32;
}

struct Flag {
  const char* name;
  bool present;
};

std::string first_missing(std::initializer_list<Flag> flags) {
  for (const Flag& flag : flags)
    if (!flag.present) return std::string("the CPU has no ") + flag.name;
  return "";
}

std::string unsaved(std::uint64_t state_bits, const char* what) {
  return (saved_state() & state_bits) == state_bits ? "" : std::string("the operating system does not save ") + what;
}

std::string either(std::string first, std::string second) { return first.empty() ? second : first; }

std::string avx2_missing() {
  return either(first_missing({{"avx2", bit(cpuid(7).ebx, 5)}, {"fma", bit(cpuid(1).ecx, 12)}}),
                unsaved(0x6, "AVX registers"));
}

std::string avx512_missing() {
  const Leaf seven = cpuid(7);
  const std::string flags = first_missing({{"avx512f", bit(seven.ebx, 16)},
                                           {"avx512dq", bit(seven.ebx, 17)},
                                           {"avx512bw", bit(seven.ebx, 30)},
                                           {"avx512vl", bit(seven.ebx, 31)},
                                           {"avx512_bf16", bit(cpuid(7, 1).eax, 5)}});
  return either(flags, unsaved(0xe6, "AVX-512 registers"));
}

// Linux hands out the 8 KiB of tile state on request, once per process (Documentation/arch/x86/xstate.rst).
std::string tile_permission() {
  constexpr int request_permission = 0x1023, tile_data = 18;
  if (syscall(SYS_arch_prctl, request_permission, tile_data) == 0) return "";
  return std::string("the kernel did not grant AMX tile state (arch_prctl: ") + std::strerror(errno) + ")";
}

std::string amx_missing() {
  const Leaf seven = cpuid(7);
  const std::string flags = first_missing({{"amx_tile", bit(seven.edx, 24)}, {"amx_bf16", bit(seven.edx, 22)}});
  return either(either(flags, avx512_missing()), flags.empty() ? tile_permission() : "");
}

}  // namespace

const std::vector<Isa>& isas() {
  static const std::vector<Isa> all{
      {"reference", &reference_kernels, ""},        {"avx2", &avx2_kernels, avx2_missing()},
      {"avx512", &avx512_kernels, avx512_missing()}, {"amx", &amx_kernels, amx_missing()},
      {"amx_emulated", &amx_emulated_kernels, ""},
  };
  return all;
}

const Isa& granted_isa(std::string_view name) {
  std::string known;
  for (const Isa& isa : isas()) {
    if (isa.name == name && isa.missing.empty()) return isa;
    if (isa.name == name) throw std::runtime_error("isa " + isa.name + " is not granted: " + isa.missing);
    known += (known.empty() ? "" : ", ") + isa.name;
  }
  throw std::invalid_argument("unknown isa '" + std::string(name) + "': one of " + known);
}

bool granted(std::string_view name) {
  for (const Isa& isa : isas())
    if (isa.name == name) return isa.missing.empty();
  return false;
}

}  // namespace ktbench
