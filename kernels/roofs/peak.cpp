#include <algorithm>
#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>

#include "roofs/rate.h"
#include "roofs/roofs.h"
#include "runtime/isa.h"

namespace ktbench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr long rounds = 2000;  // 10 to 40 us between clock readings

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// All mixes of instructions of all granted instruction sets that count as `isa`.
std::vector<Burn> burns_of(std::string_view isa, std::string_view dtype) {
  if (dtype != "bf16" && dtype != "int8")
    throw std::invalid_argument("no peak for dtype '" + std::string(dtype) + "': one of bf16, int8");
  const std::vector<Burn IsaTraits::*> mixes =
      dtype == "bf16" ? std::vector{&IsaTraits::burn_bf16} : std::vector{&IsaTraits::burn_int8, &IsaTraits::burn_blocks};
  std::vector<Burn> burns;
  std::string known;
  bool found = false;
  for (const Isa& one : isas()) {
    if (!one.feature) continue;
    if (one.name == std::string_view(one.feature)) known += (known.empty() ? "" : ", ") + std::string(one.name);
    found |= one.feature == isa;
    for (const auto mix : mixes)
      if (one.feature == isa && one.*mix && one.missing.empty()) burns.push_back(one.*mix);
  }
  if (!found) throw std::invalid_argument("no peak for isa '" + std::string(isa) + "': one of " + known);
  granted_isa(isa);
  return burns;
}

}  // namespace

double peak_flops(Team& team, std::string_view isa, double seconds, std::string_view dtype) {
  if (!(seconds >= 0 && seconds <= 60)) throw std::invalid_argument("a peak is measured for 0 to 60 seconds");
  const std::vector<Burn> burns = burns_of(isa, dtype);
  double best = 0;
  for (const Burn burn : burns)
    best = std::max(best, rate_of(team, seconds / static_cast<double>(burns.size()), [&](int) { return burn(rounds); }));
  return best;
}

// Two threads on one cpu would exchange the line once per time slice: the measurement ends after a while in any case.
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
        spin_pause();
        if (spins % 256 == 0 && seconds_since(begin) > longest) over = true;
      }
      if (!over) ball.store(hop + 1, std::memory_order_release);
    }
    if (thread == 0) took = seconds_since(begin);
  });
  return took / std::max(ball.load(), 1) * 1e9;
}

}  // namespace ktbench
