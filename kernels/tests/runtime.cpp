// Threads, phases, partitions of tasks.
#include <atomic>
#include <thread>

#include "runtime/pool.h"
#include "runtime/partition.h"
#include "tests/check.h"
#include "tests/cpus.h"

namespace ktbench::tests {
namespace {

void check_each_runs_once(bool dynamic) {
  constexpr int tasks = 1000;
  ThreadPool pool(four_cpus(), brief);
  TaskPartition partition(pool.threads());
  std::vector<Counters> counters(pool.threads());
  std::vector<std::atomic<int>> runs(tasks);
  for (int turn = 1; turn <= 50; ++turn) {
    partition.assign(tasks);
    pool.run([&](int t) { partition.work(t, dynamic, counters[t], [&](int i) { runs[i].fetch_add(1); }); });
    for (const auto& n : runs) check(n.load() == turn, "a task ran " + std::to_string(n.load()) + " times");
  }
  std::uint64_t counted = 0;
  for (const Counters& c : counters) counted += dynamic ? c.tasks_dynamic : c.tasks_static;
  check(counted == 50 * tasks, "tasks counted: " + std::to_string(counted));
}

KTBENCH_TEST(static_tasks_run_each_task_once) { check_each_runs_once(false); }
KTBENCH_TEST(stolen_tasks_run_once) { check_each_runs_once(true); }

// One thread works for two: its own five tasks, then halves of the other's five.
KTBENCH_TEST(an_idle_thread_steals_the_far_half_of_what_is_left) {
  TaskPartition partition(2);
  partition.assign(10);
  Counters counters;
  std::vector<int> order;
  partition.work(0, true, counters, [&](int task) { order.push_back(task); });
  check(order == std::vector<int>{0, 1, 2, 3, 4, 7, 8, 9, 6, 5}, "tasks ran in another order");
  check(counters.tasks_dynamic == 10 && counters.tasks_stolen == 5, "counted otherwise");
}

KTBENCH_TEST(a_phase_sees_all_of_the_one_before) {
  ThreadPool pool(four_cpus(), brief);
  std::vector<int> written(pool.threads());
  std::vector<int> sums(pool.threads());
  for (int turn = 1; turn <= 200; ++turn) {
    const ThreadPool::Phase phases[] = {
        [&](int t) { written[t] = turn; },
        [&](int t) {
          sums[t] = 0;
          for (const int w : written) sums[t] += w;
        },
    };
    pool.run(phases);
    for (const int sum : sums) check(sum == turn * pool.threads(), "a thread ran ahead of the barrier");
  }
}

KTBENCH_TEST(an_exception_of_any_thread_reaches_the_caller) {
  ThreadPool pool(four_cpus(), brief);
  for (int culprit = 0; culprit < pool.threads(); ++culprit) {
    std::atomic<int> later{0};
    const ThreadPool::Phase phases[] = {
        [&](int t) {
          if (t == culprit) throw std::runtime_error("task failed");
        },
        [&](int) { ++later; },
    };
    check_throws<std::runtime_error>([&] { pool.run(phases); }, "task failed");
    check(later == 0, "a phase ran after a failed one");
    pool.run([&](int) { ++later; });
    check(later == pool.threads(), "the pool did not recover");
  }
}

KTBENCH_TEST(callers_take_turns) {
  ThreadPool pool(four_cpus(), brief);
  int inside = 0;  // unguarded on purpose: the pool has to serialise
  const auto caller = [&] {
    for (int turn = 0; turn < 200; ++turn)
      pool.run([&](int t) {
        if (t == 0) ++inside;
      });
  };
  std::jthread one(caller), two(caller);
  one.join(), two.join();
  check(inside == 400, "turns lost");
}

KTBENCH_TEST(parked_threads_wake) {
  ThreadPool pool(four_cpus(), std::chrono::microseconds(0));
  std::atomic<int> ran{0};
  for (int turn = 0; turn < 20; ++turn) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    pool.run([&](int) { ++ran; });
  }
  check(ran == 20 * pool.threads(), "a thread slept on");
}

}  // namespace
}  // namespace ktbench::tests
