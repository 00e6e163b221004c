#include "runtime/isa.h"

#ifdef __x86_64__
#include <cpuid.h>
#endif
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "core/format_names.h"
#include "runtime/crossover.h"

namespace ktbench {

// Weak: null in a build without their instruction set (KTBENCH_ISAS in CMakeLists.txt).
[[gnu::weak]] extern KernelSet avx2_vnni_kernels, avx512_kernels, avx512_vnni_kernels, avx512_vbmi_kernels,
    avx512_bf16_kernels, amx_kernels, amx_emulated_kernels;
[[gnu::weak]] extern const RowKernels rows_avx512;
[[gnu::weak]] extern const AttentionKernels attention_avx512, attention_avx512_bf16;
[[gnu::weak]] extern const TransposedKernels transposed_avx512;
[[gnu::weak]] double burn_avx2_vnni(long), burn_avx512_fma(long), burn_avx512_madd(long), burn_avx512_vnni(long),
    burn_avx512_bf16(long), burn_amx_bf16(long), burn_amx_int8(long);

namespace {

#ifdef __x86_64__

struct Leaf {
  unsigned words[4] = {};
};

Leaf cpuid(unsigned leaf, unsigned subleaf = 0) {
  Leaf l;
  __get_cpuid_count(leaf, subleaf, &l.words[CpuFlag::eax], &l.words[CpuFlag::ebx], &l.words[CpuFlag::ecx],
                    &l.words[CpuFlag::edx]);
  return l;
}

bool present(const CpuFlag& flag) { return cpuid(flag.leaf, flag.subleaf).words[flag.where] >> flag.bit & 1; }

// XCR0: which register state the operating system saves.
std::uint64_t saved_state() {
  if (!present({"osxsave", 1, 0, CpuFlag::ecx, 27})) return 0;
  unsigned low, high;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low | static_cast<std::uint64_t>(high) << 32;
}

Cpu read_cpu() {
  const Leaf maker = cpuid(0), version = cpuid(1);
  Cpu cpu;
  for (const int word : {CpuFlag::ebx, CpuFlag::edx, CpuFlag::ecx})
    cpu.maker.append(reinterpret_cast<const char*>(&maker.words[word]), sizeof(unsigned));
  const unsigned base = version.words[CpuFlag::eax] >> 8 & 15, extended = version.words[CpuFlag::eax] >> 20 & 255;
  cpu.family = static_cast<int>(base == 15 ? base + extended : base);
  return cpu;
}

// Linux hands out the 8 KiB of tile state on request, once per process (Documentation/arch/x86/xstate.rst).
std::string tile_permission() {
  constexpr int request_permission = 0x1023, tile_data = 18;
  if (syscall(SYS_arch_prctl, request_permission, tile_data) == 0) return "";
  return std::string("the kernel did not grant AMX tile state (arch_prctl: ") + std::strerror(errno) + ")";
}

constexpr std::uint64_t avx_state = 0x6, avx512_state = 0xe6;

#else

bool present(const CpuFlag&) { return false; }
std::uint64_t saved_state() { return 0; }
Cpu read_cpu() { return {}; }

#endif

constexpr IsaTraits isa_table[] = {
    {.name = "reference",
     .counter = &Counters::reference_calls,
     .kernels = &reference_kernels,
     .rows = &rows_reference,
     .attention = &attention_reference,
     .transposed = &transposed_reference},
#ifdef __x86_64__
    {.name = "avx2",
     .feature = "avx2",
     .counter = &Counters::avx2_calls,
     .kernels = &avx2_kernels,
     .rows = &rows_avx2,
     .attention = &attention_avx2,
     .transposed = &transposed_avx2,
     .burn_bf16 = burn_avx2_fma,
     .burn_int8 = burn_avx2_madd,
     .burn_blocks = burn_avx2_blocks,
     .flags = {{"avx2", 7, 0, CpuFlag::ebx, 5}, {"fma", 1, 0, CpuFlag::ecx, 12}, {"f16c", 1, 0, CpuFlag::ecx, 29}},
     .saved_state = avx_state,
     .state = "AVX registers"},
    {.name = "avx2_vnni",
     .feature = "avx2",
     .counter = &Counters::avx2_calls,
     .kernels = &avx2_vnni_kernels,
     .burn_int8 = burn_avx2_vnni,
     .parent = "avx2",
     .flags = {{"avx_vnni", 7, 1, CpuFlag::eax, 4}}},
    {.name = "avx512",
     .feature = "avx512",
     .counter = &Counters::avx512_calls,
     .kernels = &avx512_kernels,
     .rows = &rows_avx512,
     .attention = &attention_avx512,
     .transposed = &transposed_avx512,
     .burn_bf16 = burn_avx512_fma,
     .burn_int8 = burn_avx512_madd,
     .burn_blocks = burn_avx512_blocks,
     .flags = {{"avx512f", 7, 0, CpuFlag::ebx, 16},
               {"avx512dq", 7, 0, CpuFlag::ebx, 17},
               {"avx512bw", 7, 0, CpuFlag::ebx, 30},
               {"avx512vl", 7, 0, CpuFlag::ebx, 31}},
     .saved_state = avx512_state,
     .state = "AVX-512 registers"},
    {.name = "avx512_vnni",
     .feature = "avx512",
     .counter = &Counters::avx512_calls,
     .kernels = &avx512_vnni_kernels,
     .burn_int8 = burn_avx512_vnni,
     .parent = "avx512",
     .flags = {{"avx512_vnni", 7, 0, CpuFlag::ecx, 11}}},
    {.name = "avx512_vbmi",
     .feature = "avx512",
     .counter = &Counters::avx512_calls,
     .kernels = &avx512_vbmi_kernels,
     .parent = "avx512",
     .flags = {{"avx512_vbmi", 7, 0, CpuFlag::ecx, 1}}},
    {.name = "avx512_bf16",
     .feature = "avx512",
     .counter = &Counters::avx512_calls,
     .kernels = &avx512_bf16_kernels,
     .attention = &attention_avx512_bf16,
     .burn_bf16 = burn_avx512_bf16,
          .parent = "avx512_vbmi",  // of CPUs with the former, only Cooper Lake lacks the latter
     .flags = {{"avx512_bf16", 7, 1, CpuFlag::eax, 5}}},
    {.name = "amx",
     .feature = "amx",
     .counter = &Counters::amx_tiles,
     .kernels = &amx_kernels,
     .burn_bf16 = burn_amx_bf16,
     .burn_int8 = burn_amx_int8,
     .parent = "avx512_bf16",
     .flags = {{"amx_tile", 7, 0, CpuFlag::edx, 24},
               {"amx_bf16", 7, 0, CpuFlag::edx, 22},
               {"amx_int8", 7, 0, CpuFlag::edx, 25}},
     .permission = tile_permission},
#endif
    {.name = "amx_emulated",
     .counter = &Counters::emulated_tiles,
     .kernels = &amx_emulated_kernels},
};

// The CPU's flags first, then what it extends, then the support of the operating system, then the build.
std::string missing(const IsaTraits& isa) {
  for (const CpuFlag& flag : isa.flags)
    if (flag.name && !present(flag)) return std::string("the CPU has no ") + flag.name;
  for (const IsaTraits& parent : isa_table)
    if (isa.parent && std::string_view(parent.name) == isa.parent)
      if (std::string reason = missing(parent); !reason.empty()) return reason;
  if ((saved_state() & isa.saved_state) != isa.saved_state)
    return std::string("the operating system does not save ") + isa.state;
  if (std::string reason = isa.permission ? isa.permission() : ""; !reason.empty()) return reason;
  return isa.kernels ? "" : std::string("the kernels were built without ") + isa.name + " (CMake's KTBENCH_ISAS)";
}

// vdpbf16ps runs at a quarter of the rate of FMA on Intel's cores, for twice the products (measured on Granite Rapids:
// 0.21 against 0.42 TFLOPS); on AMD's at half the rate for twice (Zen 4: 0.45 against 0.23 TFLOPS).
bool is_faster_in_bf16() {
  return cpu().maker != intel;
}

// A kernel table of the named row, or of the last granted one.
template <class Table>
const Table& kernels_in(const Table* IsaTraits::*table, const std::optional<std::string>& name) {
  if (name) {
    if (const Table* found = granted_isa(*name).*table) return *found;
    std::string known;
    for (const Isa& isa : isas())
      if (isa.*table) known += (known.empty() ? "" : ", ") + std::string(isa.name);
    throw std::invalid_argument("isa " + *name + " has no kernels for this: one of " + known);
  }
  const Table* fastest = nullptr;
  for (const Isa& isa : isas())
    if (isa.*table && isa.missing.empty() && (std::string_view(isa.name) != "avx512_bf16" || is_faster_in_bf16()))
      fastest = isa.*table;
  return *fastest;
}

bool has_row(const Isa& isa, int row) { return isa.kernels && isa.kernels->of_row[row].gate_up; }

std::string isas_with_kernels(int row) {
  std::string names;
  for (const Isa& isa : isas())
    if (has_row(isa, row)) names += (names.empty() ? "" : ", ") + std::string(isa.name);
  return names;
}

bool serves(const Isa& isa, std::string_view feature, const Format& format) {
  return isa.feature && isa.feature == feature && isa.missing.empty() && has_row(isa, row_of(format)) &&
         (std::string_view(isa.name) != "avx512_bf16" || is_faster_in_bf16());
}

struct Fastest {
  const Kernels *few, *many;
};

Fastest fastest_of(const Format& format) {
  const auto few = [&]() -> const Kernels& {
    for (const char* feature : {"avx512", "avx2"})
      if (std::ranges::any_of(isas(), [&](const Isa& isa) { return serves(isa, feature, format); }))
        return fastest_of_feature(feature, format);
    return kernels_of("reference", format);
  };
  return {&few(), has_kernels("amx", format) ? &kernels_of("amx", format) : &few()};
}

}  // namespace

const Cpu& cpu() {
  static const Cpu of = read_cpu();
  return of;
}

const std::vector<Isa>& isas() {
  static const std::vector<Isa> all = [] {
    std::vector<Isa> found;
    for (const IsaTraits& traits : isa_table) found.push_back({traits, missing(traits)});
    set_shipped_crossovers(found, cpu());
    return found;
  }();
  return all;
}

const Isa& granted_isa(std::string_view name) {
  std::string known;
  for (const Isa& isa : isas()) {
    if (isa.name == name && isa.missing.empty()) return isa;
    if (isa.name == name) throw std::runtime_error("isa " + std::string(name) + " is not granted: " + isa.missing);
    known += (known.empty() ? "" : ", ") + std::string(isa.name);
  }
  throw std::invalid_argument("unknown isa '" + std::string(name) + "': one of " + known);
}

bool granted(std::string_view name) {
  return std::ranges::any_of(isas(), [&](const Isa& isa) { return isa.name == name && isa.missing.empty(); });
}

const Kernels& kernels_of(std::string_view name, const Format& format) {
  const Kernels& kernels = granted_isa(name).kernels->of_row[row_of(format)];
  if (!kernels.gate_up)
    throw std::invalid_argument("isa " + std::string(name) + " has no kernels for " + traits_of(format).name +
                                ": allowed are " + isas_with_kernels(row_of(format)));
  return kernels;
}

bool has_kernels(std::string_view name, const Format& format) {
  return granted(name) && has_row(granted_isa(name), row_of(format));
}

void set_crossover(std::string_view name, const Format& format, const Crossover& crossover) {
  kernels_of(name, format);
  granted_isa(name).kernels->of_row[row_of(format)].crossover = crossover;
}

const Isa& fastest_isa(std::string_view feature, const Format& format) {
  granted_isa(feature);
  const Isa* fastest = nullptr;
  for (const Isa& isa : isas())
    if (serves(isa, feature, format)) fastest = &isa;
  if (!fastest) kernels_of(feature, format);  // throws the reason
  return *fastest;
}

const Kernels& fastest_of_feature(std::string_view feature, const Format& format) {
  return fastest_isa(feature, format).kernels->of_row[row_of(format)];
}

const Kernels& fastest_kernels(const Format& format, int tokens) {
  static const auto all = [] {
    std::array<Fastest, format_count> found;
    for (int row = 0; row < format_count; ++row) found[row] = fastest_of(format_table[row].format);
    return found;
  }();
  const Fastest& fastest = all[row_of(format)];
  return tokens < fastest.many->crossover.block_from ? *fastest.few : *fastest.many;
}

const RowKernels& row_kernels(const std::optional<std::string>& isa) {
  static const RowKernels& best = kernels_in(&IsaTraits::rows, std::nullopt);
  return isa ? kernels_in(&IsaTraits::rows, isa) : best;
}

const AttentionKernels& attention_kernels(const std::optional<std::string>& isa) {
  static const AttentionKernels& best = kernels_in(&IsaTraits::attention, std::nullopt);
  return isa ? kernels_in(&IsaTraits::attention, isa) : best;
}

const Isa& transposing_isa(std::string_view name) {
  const Isa& isa = granted_isa(name);
  return isa.transposed ? isa : transposing_isa(isa.parent ? isa.parent : "reference");
}

}  // namespace ktbench
