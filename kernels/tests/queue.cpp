// A long queue: who waits for what, and when it comes back.
#include <algorithm>
#include <latch>
#include <memory>
#include <numeric>
#include <random>
#include <thread>

#include "runtime/pool.h"
#include "tests/check.h"
#include "tests/cpus.h"

namespace ktbench::tests {
namespace {

KTBENCH_TEST(a_wait_ends_with_its_job_while_later_ones_run) {
  ThreadPool pool(four_cpus(), brief, true);
  std::latch let_go(1);
  std::vector<std::shared_ptr<Job>> jobs;
  for (int i = 0; i < 5; ++i) jobs.push_back(pool.submit({[](int) {}}));
  const auto held = pool.submit({[&](int) { let_go.wait(); }}), behind = pool.submit({[](int) {}});
  for (const auto& job : jobs) {
    pool.wait(*job);
    check(pool.done(*job), "waited for, and not done");
  }
  check(!pool.done(*held) && !pool.done(*behind), "done before its turn");
  let_go.count_down();
  pool.wait(*held), pool.wait(*behind);
}

KTBENCH_TEST(a_job_is_done_without_a_wait_where_the_pool_is_its_own) {
  ThreadPool pool(four_cpus(), brief, true);
  std::vector<int> ran(pool.threads());
  const auto job = pool.submit({[&](int t) { ++ran[t]; }});
  while (!pool.done(*job)) std::this_thread::yield();
  check(ran == std::vector<int>(pool.threads(), 1), "a thread missed the job");
}

KTBENCH_TEST(a_long_queue_is_waited_for_in_any_order) {
  std::mt19937 numbers(7);
  for (const bool own : {false, true}) {
    ThreadPool pool(four_cpus(), brief, own);
    for (int turn = 0; turn < 10; ++turn) {
      std::vector<int> order;  // unguarded on purpose
      std::vector<std::shared_ptr<Job>> jobs;
      for (int i = 0; i < 200; ++i)
        jobs.push_back(pool.submit({[&, i](int t) {
          if (t == i % pool.threads()) order.push_back(i);
        }}));
      std::vector<int> waits(jobs.size());
      std::iota(waits.begin(), waits.end(), 0);
      std::shuffle(waits.begin(), waits.end(), numbers);
      for (const int i : waits) pool.wait(*jobs[i]), check(pool.done(*jobs[i / 2]), "a job overtook");
      check(order.size() == jobs.size() && std::is_sorted(order.begin(), order.end()), "out of order");
    }
  }
}

}  // namespace
}  // namespace ktbench::tests
