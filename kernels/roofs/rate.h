#pragma once

#include <chrono>
#include <vector>

#include "runtime/team.h"

namespace ktbench {

// What `work(thread)`, done again and again for `seconds` by every thread at once, gives per second of all together.
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
