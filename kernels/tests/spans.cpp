// When jobs ran, as their team remembers it.
#include <atomic>
#include <thread>

#include "runtime/pool.h"
#include "tests/check.h"
#include "tests/cpus.h"

namespace ktbench::tests {
namespace {

void check_one_after_the_other(const std::vector<Span>& spans) {
  std::int64_t last = 0;
  for (const Span& span : spans) {
    check(last <= span.begin_ns && span.begin_ns <= span.end_ns, "spans overlap");
    last = span.end_ns;
  }
}

KTBENCH_TEST(a_span_holds_all_that_its_job_did) {
  for (const bool own : {false, true}) {
    ThreadPool pool(four_cpus(), brief, own);
    std::vector<std::int64_t> first(4), last(4);
    const Team::Phase phases[] = {[&](int t) { first[t] = monotonic_ns(); }, [&](int t) { last[t] = monotonic_ns(); }};
    pool.run(phases, 3);
    const std::vector<Span> spans = pool.spans();
    check(spans.size() == 1 && spans[0].tag == 3, "not that one job");
    for (const std::int64_t at : first) check(spans[0].begin_ns <= at, "a thread began before");
    for (const std::int64_t at : last) check(at <= spans[0].end_ns, "a thread ended later");
    check(pool.busy_ns() == spans[0].end_ns - spans[0].begin_ns, "busy for another time");
  }
}

KTBENCH_TEST(spans_come_in_order_failed_jobs_among_them) {
  ThreadPool pool(four_cpus(), brief, true);
  for (int i = 0; i < 100; ++i)
    pool.submit({[i](int) {
                  if (i % 10 == 0) throw std::runtime_error("unseen");
                }},
                i);
  pool.run([](int) {});
  const std::vector<Span> spans = pool.spans();
  check(spans.size() == 101 && spans.back().tag == Team::untagged, "jobs are missing");
  for (int i = 0; i < 100; ++i) check(spans[i].tag == i, "out of order");
  check_one_after_the_other(spans);
}

KTBENCH_TEST(spans_are_taken_while_jobs_run) {
  ThreadPool pool(four_cpus(), brief, true);
  std::atomic<bool> over{false};
  std::vector<Span> taken;
  std::int64_t busy = 0;
  std::jthread reader([&] {
    while (!over) {
      for (const Span& span : pool.spans()) taken.push_back(span);
      check(pool.busy_ns() >= busy, "busy time went back");
      busy = pool.busy_ns();
    }
  });
  for (int i = 0; i < 2000; ++i) pool.submit({[](int) {}}, i);
  pool.run([](int) {});
  over = true;
  reader.join();
  for (const Span& span : pool.spans()) taken.push_back(span);
  check(taken.size() == 2001, "spans lost or returned twice");
  check_one_after_the_other(taken);
}

KTBENCH_TEST(a_ring_keeps_the_last) {
  Spans spans;
  constexpr std::int64_t noted = Spans::kept + 5;
  for (std::int64_t i = 0; i < noted; ++i) spans.note({i, i, i + 2});
  check(spans.busy_ns() == 2 * noted, "time lost");
  const std::vector<Span> kept = spans.take();
  check(kept.size() == Spans::kept && kept.front().tag == 5 && kept.back().tag == noted - 1, "others than the last");
  check_one_after_the_other({kept.front(), kept.back()});
  check(spans.take().empty(), "returned twice");
}

}  // namespace
}  // namespace ktbench::tests
