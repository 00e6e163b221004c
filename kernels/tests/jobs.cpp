// Submitted jobs: their order, their waiters, their failures.
#include <atomic>
#include <latch>
#include <memory>
#include <thread>

#include "runtime/pool.h"
#include "tests/check.h"
#include "tests/cpus.h"

namespace ktbench::tests {
namespace {

// One thread of a phase alone writes.
void add(int& sum, bool mine) {
  if (mine) ++sum;
}

template <class Body>
void with_both_pools(Body body) {
  for (const bool own : {false, true}) {
    ThreadPool pool(four_cpus(), brief, own);
    body(pool);
  }
}

KTBENCH_TEST(every_thread_runs_every_phase_of_a_submitted_job) {
  with_both_pools([](ThreadPool& pool) {
    std::vector<int> ran(pool.threads());
    const Team::Phase phase = [&](int t) { ++ran[t]; };
    pool.wait(*pool.submit({phase, phase, phase}));
    check(ran == std::vector<int>(pool.threads(), 3), "a thread missed a phase");
  });
}

KTBENCH_TEST(jobs_run_in_the_order_of_submission) {
  with_both_pools([](ThreadPool& pool) {
    std::vector<int> order;  // unguarded on purpose
    std::vector<std::shared_ptr<Job>> jobs;
    for (int i = 0; i < 300; ++i)
      jobs.push_back(pool.submit({[&order, i, last = pool.threads() - 1](int t) {
        if (t == (i % 2 ? 0 : last)) order.push_back(i);
      }}));
    pool.run([&](int t) {
      if (t == 0) order.push_back(300);
    });
    for (const auto& job : jobs) pool.wait(*job);
    check(order.size() == 301, "jobs lost");
    for (int i = 0; i <= 300; ++i) check(order[i] == i, std::to_string(order[i]) + " ran as " + std::to_string(i));
  });
}

KTBENCH_TEST(waits_may_come_in_any_order_and_twice) {
  with_both_pools([](ThreadPool& pool) {
    std::atomic<int> done{0};
    const auto first = pool.submit({[&](int) { ++done; }}), second = pool.submit({[&](int) { ++done; }});
    pool.wait(*second);
    check(done == 2 * pool.threads(), "the second was done before the first");
    pool.wait(*first), pool.wait(*second), pool.wait(*first);
  });
}

KTBENCH_TEST(an_owned_pool_works_while_nobody_waits) {
  ThreadPool pool(four_cpus(), brief, true);
  std::latch reached(pool.threads());
  const auto job = pool.submit({[](int) {}, [&](int) { reached.count_down(); }});
  reached.wait();
  pool.wait(*job);
}

KTBENCH_TEST(the_other_threads_begin_before_anyone_waits) {
  ThreadPool pool(four_cpus(), brief);
  std::latch begun(pool.threads() - 1);
  std::atomic<int> second_phase{0};
  const auto job = pool.submit({[&](int t) {
                                  if (t > 0) begun.count_down();
                                },
                                [&](int) { ++second_phase; }});
  begun.wait();
  check(second_phase == 0, "a barrier was passed without thread 0");
  pool.wait(*job);
  check(second_phase == pool.threads(), "a phase is missing");
}

KTBENCH_TEST(the_caller_works_only_where_the_pool_is_not_its_own) {
  for (const bool own : {false, true}) {
    ThreadPool pool(four_cpus(), brief, own);
    std::vector<std::thread::id> ids(pool.threads());
    pool.run([&](int t) { ids[t] = std::this_thread::get_id(); });
    for (int t = 0; t < pool.threads(); ++t)
      check((ids[t] == std::this_thread::get_id()) == (t == 0 && !own), "thread " + std::to_string(t) + " is another");
  }
}

KTBENCH_TEST(a_failed_job_tells_its_waiter_once_and_harms_no_other) {
  with_both_pools([](ThreadPool& pool) {
    for (int culprit = 0; culprit < pool.threads(); ++culprit) {
      std::atomic<int> later{0}, others{0};
      const auto before = pool.submit({[&](int) { ++others; }});
      const auto failing = pool.submit({[&](int t) {
                                          if (t == culprit) throw std::runtime_error("task failed");
                                        },
                                        [&](int) { ++later; }});
      const auto after = pool.submit({[&](int) { ++others; }});
      pool.wait(*after);
      check_throws<std::runtime_error>([&] { pool.wait(*failing); }, "task failed");
      pool.wait(*failing), pool.wait(*before);
      check(later == 0, "a phase ran after a failed one");
      check(others == 2 * pool.threads(), "another job suffered");
    }
  });
}

KTBENCH_TEST(a_failure_that_nobody_waits_for_stays_with_its_job) {
  with_both_pools([](ThreadPool& pool) {
    pool.submit({[](int) { throw std::runtime_error("unseen"); }});
    int ran = 0;
    pool.run([&](int t) { add(ran, t == 0); });
    check(ran == 1, "the pool did not recover");
  });
}

KTBENCH_TEST(a_job_without_phases_is_done_after_those_before_it) {
  with_both_pools([](ThreadPool& pool) {
    std::atomic<int> ran{0};
    pool.submit({[&](int) { ++ran; }});
    pool.wait(*pool.submit({}));
    check(ran == pool.threads(), "it overtook");
  });
}

KTBENCH_TEST(a_job_of_another_team_is_refused) {
  ThreadPool one({four_cpus()[0]}, brief), other({four_cpus()[0]}, brief);
  const auto job = one.submit({});
  check_throws<std::invalid_argument>([&] { other.wait(*job); }, "another team");
  one.wait(*job);
}

KTBENCH_TEST(many_threads_submit_and_wait_on_one_pool) {
  with_both_pools([](ThreadPool& pool) {
    int inside = 0;  // unguarded on purpose: the pool has to serialise
    const auto caller = [&] {
      std::vector<std::shared_ptr<Job>> jobs;
      for (int turn = 0; turn < 200; ++turn) {
        jobs.push_back(pool.submit({[&](int t) { add(inside, t == 1); }, [&](int t) { add(inside, t == 2); }}));
        if (turn % 7 == 0) pool.wait(*jobs[turn / 2]);
      }
      for (const auto& job : jobs) pool.wait(*job);
    };
    std::jthread one(caller), two(caller), three(caller);
    one.join(), two.join(), three.join();
    check(inside == 3 * 2 * 200, "turns lost: " + std::to_string(inside));
  });
}

KTBENCH_TEST(one_thread_submits_and_another_waits) {
  with_both_pools([](ThreadPool& pool) {
    for (int turn = 0; turn < 100; ++turn) {
      int written = 0;
      const auto job = pool.submit({[&](int t) { add(written, t == 0); }});
      std::jthread([&] { pool.wait(*job); }).join();
      check(written == 1, "the waiter came back too early");
    }
  });
}

KTBENCH_TEST(two_pools_are_driven_from_two_threads) {
  with_both_pools([](ThreadPool& pool) {
    ThreadPool other(four_cpus(), brief, true);
    const auto drive = [](ThreadPool& driven, int& sum) {
      for (int turn = 0; turn < 300; ++turn) driven.run([&](int t) { add(sum, t == 0); });
    };
    int first = 0, second = 0;
    std::jthread one([&] { drive(pool, first); }), two([&] { drive(other, second); });
    one.join(), two.join();
    check(first == 300 && second == 300, "turns lost");
  });
}

KTBENCH_TEST(parked_threads_wake_for_a_submitted_job) {
  for (const bool own : {false, true}) {
    ThreadPool pool(four_cpus(), std::chrono::microseconds(0), own);
    std::atomic<int> ran{0};
    const Team::Phase phase = [&](int) { ++ran; };
    for (int turn = 0; turn < 20; ++turn) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      const auto job = pool.submit({phase, phase});
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      pool.wait(*job);
    }
    check(ran == 2 * 20 * pool.threads(), "a thread slept on");
  }
}

}  // namespace
}  // namespace ktbench::tests
