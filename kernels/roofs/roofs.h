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

// Read bandwidth from memory: each thread owns a contiguous part of the buffer and continues where it stopped. Threads
// do not wait for each other: on many cores some thread is always delayed, which dynamically scheduled work
// compensates.
class ReadRoof {
 public:
  ReadRoof(std::shared_ptr<Team> team, std::size_t bytes);
  // Bytes per second of all threads together, each over `seconds` or slightly more.
  double sample(double seconds);
  // Reads the whole buffer.
  void read_once();

 private:
  void choose_loop();
  void read_piece(int thread);

  const std::shared_ptr<Team> team_;
  ReadLoop read_ = nullptr;
  const std::size_t part_bytes_;
  const std::size_t piece_bytes_;
  std::vector<HugeBuffer> parts_;
  std::vector<std::size_t> positions_;
};

// Operations per second of register-only multiplications, all threads together, with the fastest instruction granted
// for `isa` and `dtype`; takes about `seconds`. Throws std::invalid_argument for unknown names.
double peak_flops(Team& team, std::string_view isa, double seconds, std::string_view dtype);

// Nanoseconds for a cache line to pass between threads 0 and 1 of the team, one way.
double ping_pong_ns(Team& team);

}  // namespace ktbench
