// Waiting on a word that another thread will change: spin, let others run now and then, park after a while.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace ktbench {

using Word = std::atomic<std::uint32_t>;

// Returns once word != old. The spin is bounded in time, so nothing here assumes a core of its own.
void await_change(const Word& word, std::uint32_t old, std::chrono::microseconds spin);

// All threads of a pool meet here.
class Barrier {
 public:
  Barrier(int threads, std::chrono::microseconds spin) : threads_(threads), spin_(spin) {}
  void arrive_and_wait();

 private:
  const std::uint32_t threads_;
  const std::chrono::microseconds spin_;
  alignas(64) Word arrived_{0};
  alignas(64) Word generation_{0};
};

}  // namespace ktbench
