// How long jobs live, and what becomes of those that are never waited for.
#include <atomic>
#include <latch>
#include <memory>
#include <thread>

#include "runtime/pool.h"
#include "tests/check.h"
#include "tests/cpus.h"

namespace ktbench::tests {
namespace {

KTBENCH_TEST(a_pool_ends_what_has_begun_and_drops_the_rest) {
  for (const bool own : {false, true}) {
    const auto held = std::make_shared<int>(0);
    auto behind = std::make_shared<int>(0);
    const std::weak_ptr<int> queue = behind;  // as long as jobs are in it
    std::atomic<int> began{0}, ended{0}, dropped{0};
    {
      ThreadPool pool(four_cpus(), brief, own);
      std::latch first(1);
      pool.submit({[&, held](int t) {
                     if (t == pool.threads() - 1) first.count_down();
                     while (!queue.expired()) std::this_thread::yield();
                     ++began;
                   },
                   [&, held](int) { ++ended; }});
      first.wait();
      for (int i = 0; i < 10; ++i) pool.submit({[&, held, behind](int) { ++dropped; }});
      behind.reset();
    }
    check(began == 4 && ended == 4, "the job that had begun was cut short");
    check(dropped == 0, "a job began after the end");
    check(held.use_count() == 1, "a job outlived its pool");
  }
}

KTBENCH_TEST(a_ticket_may_outlive_its_pool) {
  std::shared_ptr<Job> ticket;
  {
    ThreadPool pool(four_cpus(), brief, true);
    ticket = pool.submit({[](int) {}});
  }
}

KTBENCH_TEST(soak) {
  const auto held = std::make_shared<int>(0);
  ThreadPool pool({four_cpus()[1]}, std::chrono::microseconds(500), true);
  int ran = 0;
  const Team::Phase phase = [&ran, held](int) { ++ran; };
  for (int turn = 0; turn < 100; ++turn) {
    for (int i = 0; i < 980; ++i) pool.submit({phase});
    for (int i = 0; i < 20; ++i) pool.wait(*pool.submit({phase}));
  }
  check(ran == 100'000, "jobs lost");
  check(held.use_count() == 2, "jobs were kept");
}

}  // namespace
}  // namespace ktbench::tests
