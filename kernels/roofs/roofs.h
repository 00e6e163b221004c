// The limits of this machine, measured on the very threads that the kernels use.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>
#include <vector>

#include "core/kernels.h"
#include "runtime/memory.h"
#include "runtime/team.h"

namespace ktbench {

// Read bandwidth from memory: each thread owns a contiguous part of the buffer and reads on where it stopped.
class ReadRoof {
 public:
  ReadRoof(std::shared_ptr<Team> team, std::size_t bytes);
  // Bytes per second of one sample. Throws std::invalid_argument when it exceeds the buffer.
  double sample(std::size_t bytes);

 private:
  void choose_loop();

  const std::shared_ptr<Team> team_;
  ReadLoop read_ = nullptr;
  const std::size_t part_bytes_;
  std::vector<HugeBuffer> parts_;
  std::size_t position_ = 0;
};

// Operations per second of register-only multiplications, all threads together, by the fastest instruction that is
// granted for `isa` and `dtype`; about `seconds` in all. Throws std::invalid_argument naming what is unknown.
double peak_flops(Team& team, std::string_view isa, double seconds, std::string_view dtype);

// Nanoseconds for a cache line to pass between threads 0 and 1 of the team, one way.
double ping_pong_ns(Team& team);

}  // namespace ktbench
