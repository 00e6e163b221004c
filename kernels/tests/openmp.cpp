// A team of OpenMP threads, where this machine has an OpenMP runtime to load.
#include <dlfcn.h>

#include <atomic>

#include "runtime/openmp.h"
#include "tests/check.h"

namespace ktbench::tests {
namespace {

// All made before the runtime starts its threads, and never destroyed: ThreadSanitizer does not see how it hands a team
// to its threads, nor how it joins them.
struct Teams {
  OpenMPTeam three{3}, two{2}, outer{2}, inner{2};
};

Teams* teams() {
  static Teams* const made = dlopen("libgomp.so.1", RTLD_NOW) ? new Teams : nullptr;
  return made;
}

KTBENCH_TEST(openmp_threads_work_when_somebody_waits) {
  if (!teams()) return;
  Team& team = teams()->three;
  std::vector<int> ran(3);
  const Team::Phase phase = [&](int t) { ++ran[t]; };
  const auto first = team.submit({phase, phase}), second = team.submit({phase});
  check(ran == std::vector{0, 0, 0}, "they worked before");
  team.wait(*first);
  check(ran == std::vector{2, 2, 2}, "a phase is missing, or the second job was not left for later");
  team.run(phase);
  team.wait(*second);
  check(ran == std::vector{4, 4, 4}, "a job is missing");
}

KTBENCH_TEST(openmp_failures_reach_the_waiter) {
  if (!teams()) return;
  Team& team = teams()->two;
  for (const int culprit : {0, 1}) {
    const auto job = team.submit({[&](int t) {
      if (t == culprit) throw std::runtime_error("task failed");
    }});
    check_throws<std::runtime_error>([&] { team.wait(*job); }, "task failed");
  }
}

// Inside a parallel region the runtime gives one thread only.
KTBENCH_TEST(openmp_jobs_fail_one_by_one_where_threads_are_short) {
  if (!teams()) return;
  Team &outer = teams()->outer, &inner = teams()->inner;
  std::atomic<int> ran{0};
  const auto first = inner.submit({[&](int) { ++ran; }}), second = inner.submit({[&](int) { ++ran; }});
  outer.run([&](int t) {
    if (t == 0) check_throws<std::runtime_error>([&] { inner.wait(*second); }, "OpenMP gave 1 of 2 threads");
  });
  check_throws<std::runtime_error>([&] { inner.wait(*first); }, "OpenMP gave 1 of 2 threads");
  check(ran == 0, "a job ran with a thread short");
  inner.run([&](int t) {
    if (t == 0) ++ran;
  });
  check(ran == 1, "the team did not recover");
}

KTBENCH_TEST(openmp_drops_what_nobody_waits_for) {
  if (!teams()) return;
  const auto held = std::make_shared<int>(0);
  OpenMPTeam(2).submit({[held](int) {}});
  check(held.use_count() == 1, "a job outlived its team");
}

}  // namespace
}  // namespace ktbench::tests
