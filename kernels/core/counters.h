// What happened, counted where it happened. One set per thread, on cache lines of its own.
#pragma once

#include <cstdint>

namespace ktbench {

struct alignas(64) Counters {
  std::uint64_t reference_calls = 0;
  std::uint64_t avx2_calls = 0;
  std::uint64_t avx512_calls = 0;
  std::uint64_t amx_tiles = 0;       // tile multiply instructions
  std::uint64_t emulated_tiles = 0;  // the same, done in plain C++
  std::uint64_t tasks_static = 0;
  std::uint64_t tasks_dynamic = 0;
  std::uint64_t tasks_stolen = 0;
  std::uint64_t weight_bytes = 0;
  std::uint64_t flops = 0;
  std::uint64_t local_bytes = 0;   // of weights, read by the threads of their domain, with numa
  std::uint64_t remote_bytes = 0;  // of weights, read by threads of other domains

  Counters& operator+=(const Counters& other);
};

}  // namespace ktbench
