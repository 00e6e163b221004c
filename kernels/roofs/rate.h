#pragma once

#include <chrono>
#include <vector>

#include "runtime/team.h"

namespace ktbench {

// The combined rate of `work(thread)`, repeated for `seconds` by all threads at once.
template <typename Work>
double rate_of(Team& team, double seconds, Work&& work) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> rates(team.threads());
  team.run([&](int thread) {
    const auto begin = Clock::now();
    double done = 0, took;
    do {
      done += work(thread);
      took = std::chrono::duration<double>(Clock::now() - begin).count();
    } while (took < seconds);
    rates[thread] = done / took;
  });
  double sum = 0;
  for (const double rate : rates) sum += rate;
  return sum;
}

}  // namespace ktbench
