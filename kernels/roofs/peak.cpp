#include <algorithm>
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

double peak_flops(Team& team, std::string_view isa, double seconds, std::string_view dtype) {
  constexpr long rounds = 2000;  // 10 to 40 us between looks at the clock
  const Burn burn = burn_of(isa, dtype);
  std::vector<double> rate(team.threads());
  team.run([&](int thread) {
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

// Two threads on one cpu would pass the ball once per time slice: the game ends after a while in any case.
double ping_pong_ns(Team& team) {
  if (team.threads() < 2) throw std::invalid_argument("a ping-pong needs a team of two threads");
  constexpr int hops = 2000;
  constexpr double longest = 0.02;
  alignas(64) std::atomic<int> ball{0};
  std::atomic<bool> over{false};
  double took = 0;
  team.run([&](int thread) {
    if (thread > 1) return;
    const auto begin = Clock::now();
    for (int hop = thread; hop < hops && !over; hop += 2) {
      for (int spins = 1; ball.load(std::memory_order_acquire) != hop && !over; ++spins) {
        __builtin_ia32_pause();
        if (spins % 256 == 0 && seconds_since(begin) > longest) over = true;
      }
      if (!over) ball.store(hop + 1, std::memory_order_release);
    }
    if (thread == 0) took = seconds_since(begin);
  });
  return took / std::max(ball.load(), 1) * 1e9;
}

}  // namespace ktbench
