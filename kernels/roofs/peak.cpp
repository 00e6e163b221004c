#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>

#include "roofs/roofs.h"
#include "runtime/isa.h"

namespace ktbench {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

Burn burn_of(std::string_view isa, std::string_view dtype) {
  if (dtype != "bf16") throw std::invalid_argument("no peak for dtype '" + std::string(dtype) + "': one of bf16");
  granted_isa(isa);
  if (isa == "avx2") return burn_avx2;
  if (isa == "avx512") return burn_avx512;
  if (isa == "amx") return burn_amx;
  throw std::invalid_argument("no peak for isa '" + std::string(isa) + "': one of avx2, avx512, amx");
}

}  // namespace

double peak_flops(ThreadPool& pool, std::string_view isa, double seconds, std::string_view dtype) {
  constexpr long rounds = 2000;  // 10 to 40 us between looks at the clock
  const Burn burn = burn_of(isa, dtype);
  std::vector<double> rate(pool.threads());
  pool.run([&](int thread) {
    const auto begin = Clock::now();
    double flops = 0, took;
    do flops += burn(rounds);
    while ((took = seconds_since(begin)) < seconds);
    rate[thread] = flops / took;
  });
  double sum = 0;
  for (const double r : rate) sum += r;
  return sum;
}

double ping_pong_ns(ThreadPool& pool) {
  if (pool.threads() < 2) throw std::invalid_argument("a ping-pong needs a pool of two threads");
  if (pool.cpus()[0] == pool.cpus()[1]) throw std::invalid_argument("a ping-pong needs threads on two cpus");
  constexpr int hops = 2000;
  alignas(64) std::atomic<int> ball{0};
  double took = 0;
  pool.run([&](int thread) {
    if (thread > 1) return;
    const auto begin = Clock::now();
    for (int hop = thread; hop < hops; hop += 2) {
      while (ball.load(std::memory_order_acquire) != hop) __builtin_ia32_pause();
      ball.store(hop + 1, std::memory_order_release);
    }
    if (thread == 0) took = seconds_since(begin);
  });
  return took / hops * 1e9;
}

}  // namespace ktbench
