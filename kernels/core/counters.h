// Counters of events. One set per thread, on separate cache lines.
#pragma once

#include <cstdint>

namespace ktbench {

struct alignas(64) Counters {
  std::uint64_t reference_calls = 0;
  std::uint64_t avx2_calls = 0;
  std::uint64_t avx512_calls = 0;
  std::uint64_t amx_tiles = 0;       // tile multiply instructions
  std::uint64_t emulated_tiles = 0;  // the same, done in plain C++
  std::uint64_t stream_calls = 0;    // of avx2_calls and avx512_calls: few rows,
  std::uint64_t fetching_calls = 0;  // few rows with prefetches,
  std::uint64_t block_calls = 0;     // many rows
  std::uint64_t tasks_static = 0;
  std::uint64_t tasks_dynamic = 0;
  std::uint64_t tasks_stolen = 0;
  std::uint64_t weight_bytes = 0;
  std::uint64_t flops = 0;
  std::uint64_t local_bytes = 0;   // of weights, read by the threads of their domain, with numa
  std::uint64_t remote_bytes = 0;  // of weights, read by threads of other domains
};

struct CounterTraits {
  const char* name;
  std::uint64_t Counters::*value;
    bool of_tasks = false;  // who computed what; only for the MoE operator
};

inline constexpr CounterTraits counter_table[] = {
    {"reference_calls", &Counters::reference_calls},
    {"avx2_calls", &Counters::avx2_calls},
    {"avx512_calls", &Counters::avx512_calls},
    {"amx_tiles", &Counters::amx_tiles},
    {"emulated_tiles", &Counters::emulated_tiles},
    {"stream_calls", &Counters::stream_calls},
    {"fetching_calls", &Counters::fetching_calls},
    {"block_calls", &Counters::block_calls},
    {"tasks_static", &Counters::tasks_static, true},
    {"tasks_dynamic", &Counters::tasks_dynamic, true},
    {"tasks_stolen", &Counters::tasks_stolen, true},
    {"weight_bytes", &Counters::weight_bytes},
    {"flops", &Counters::flops},
    {"local_bytes", &Counters::local_bytes, true},
    {"remote_bytes", &Counters::remote_bytes, true},
};

// Not for files with vector code.
Counters& operator+=(Counters& sum, const Counters& other);

}  // namespace ktbench
