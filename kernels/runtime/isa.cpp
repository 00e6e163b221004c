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
  const Leaf one = cpuid(1);
  const std::string flags =
      first_missing({{"avx2", bit(cpuid(7).ebx, 5)}, {"fma", bit(one.ecx, 12)}, {"f16c", bit(one.ecx, 29)}});
  return either(flags, unsaved(0x6, "AVX registers"));
}

std::string avx2_vnni_missing() {
  return either(avx2_missing(), first_missing({{"avx_vnni", bit(cpuid(7, 1).eax, 4)}}));
}

std::string avx512_missing() {
  const Leaf seven = cpuid(7);
  const std::string flags = first_missing({{"avx512f", bit(seven.ebx, 16)},
                                           {"avx512dq", bit(seven.ebx, 17)},
                                           {"avx512bw", bit(seven.ebx, 30)},
                                           {"avx512vl", bit(seven.ebx, 31)}});
  return either(flags, unsaved(0xe6, "AVX-512 registers"));
}

std::string avx512_vnni_missing() {
  return either(avx512_missing(), first_missing({{"avx512_vnni", bit(cpuid(7).ecx, 11)}}));
}

std::string avx512_bf16_missing() {
  return either(avx512_missing(), first_missing({{"avx512_bf16", bit(cpuid(7, 1).eax, 5)}}));
}

bool made_by_intel() {
  const Leaf zero = cpuid(0);
  return zero.ebx == 0x756e6547 && zero.edx == 0x49656e69 && zero.ecx == 0x6c65746e;  // "GenuineIntel"
}

// Linux hands out the 8 KiB of tile state on request, once per process (Documentation/arch/x86/xstate.rst).
std::string tile_permission() {
  constexpr int request_permission = 0x1023, tile_data = 18;
  if (syscall(SYS_arch_prctl, request_permission, tile_data) == 0) return "";
  return std::string("the kernel did not grant AMX tile state (arch_prctl: ") + std::strerror(errno) + ")";
}

std::string amx_missing() {
  const Leaf seven = cpuid(7);
  const std::string flags = first_missing({
      {"amx_tile", bit(seven.edx, 24)}, {"amx_bf16", bit(seven.edx, 22)}, {"amx_int8", bit(seven.edx, 25)}});
  const std::string lacking = either(flags, avx512_missing());
  return lacking.empty() ? tile_permission() : lacking;
}

}  // namespace

const std::vector<Isa>& isas() {
  static const std::vector<Isa> all{
      {"reference", &reference_kernels, ""},
      {"avx2", &avx2_kernels, avx2_missing()},
      {"avx2_vnni", &avx2_vnni_kernels, avx2_vnni_missing()},
      {"avx512", &avx512_kernels, avx512_missing()},
      {"avx512_vnni", &avx512_vnni_kernels, avx512_vnni_missing()},
      {"avx512_bf16", &avx512_bf16_kernels, avx512_bf16_missing()},
      {"amx", &amx_kernels, amx_missing()},
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

const Kernels& kernels_of(std::string_view name, Precision precision) {
  constexpr const char* names[] = {"bf16", "int8", "int4", "q8_0", "q4_0"};
  const Kernels& kernels = (*granted_isa(name).kernels)[static_cast<int>(precision)];
  if (!kernels.gate_up)
    throw std::invalid_argument("isa " + std::string(name) + " has no kernels for " +
                                names[static_cast<int>(precision)]);
  return kernels;
}

bool has_kernels(std::string_view name, Precision precision) {
  return granted(name) && (*granted_isa(name).kernels)[static_cast<int>(precision)].gate_up;
}

bool reads_pairs() {
  static const bool pairs = made_by_intel();
  return pairs;
}

// vdpbf16ps runs at a quarter of the rate of FMA on Intel's cores, for twice the products (measured on Granite Rapids:
// 0.21 against 0.42 TFLOPS); on AMD's at half the rate for twice (Zen 4: 0.45 against 0.23 TFLOPS).
const Kernels& fastest_avx512(Precision precision) {
  granted_isa("avx512");
  const bool is_bf16 = precision == Precision::bf16;
  static const bool dots_bf16 = granted("avx512_bf16") && !made_by_intel();
  const bool extended = is_bf16 ? dots_bf16 : granted("avx512_vnni");
  return kernels_of(!extended ? "avx512" : is_bf16 ? "avx512_bf16" : "avx512_vnni", precision);
}

}  // namespace ktbench
