// Threads that run jobs together: a job is a list of phases with a barrier after each. Jobs run one after the other, in
// the order of submission, from any threads.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "runtime/spans.h"
#include "runtime/waiting.h"

namespace ktbench {

struct Job;  // one submission, the ticket to wait with

class Team {
 public:
  using Phase = std::function<void(int thread)>;
  static constexpr int untagged = -1;

  virtual ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int threads() const { return threads_; }

  // Throws std::runtime_error in a child of the process that made the team: after a fork its threads do not exist, and
  // waiting for them would never end.
  void check_process() const;

  // These throw like check_process(). Returns at once. What the phases hold is destroyed with the job: on any thread,
  // unless the ticket is still held. The tag identifies the job in spans().
  std::shared_ptr<Job> submit(std::vector<Phase> phases, int tag = untagged);

  // Returns when the job is done; the first exception of any of its threads is rethrown here, once, and its later
  // phases are skipped. Any thread may wait, but not a phase of the same team. If thread 0 is left to callers, a
  // waiting one works as thread 0, in this job and in all before it. Throws std::invalid_argument for a job of another
  // team.
  void wait(Job& job);
  // Whether wait() would return at once. If callers are thread 0, no job is done before a caller waits.
  bool done(const Job& job) const;

  // Submits and waits. Callers take turns.
  void run(std::span<const Phase> phases, int tag = untagged);
  void run(const Phase& phase) { run(std::span(&phase, 1)); }

  // When each job's first thread began it, and when the job was done; in order and disjoint, since jobs run one by one.
  // A job is recorded before its waiter returns.
  std::vector<Span> spans() { return spans_.take(); }
  std::int64_t busy_ns() const { return spans_.busy_ns(); }

 protected:
  enum class Thread0 { caller, own };
  Team(int threads, std::chrono::microseconds spin, Thread0 thread0);

  // Called as thread 0: makes every thread, including itself, take part in the current job. Throws if that is
  // impossible; then no thread may have taken part.
  virtual void enter() = 0;
  void take_part(int thread);

  // Completes the running job and drops the others.
  void settle();

  bool in_own_process() const;

    EventCount begun_;  // jobs in which the team's own threads may take part, one by one

 private:
  bool completed(std::uint64_t number) const { return completed_.load(std::memory_order_acquire) >= number; }
  void enqueue(Job& job);
  void await(std::uint64_t number);
  bool work_as_thread0(std::uint64_t up_to);
  void work_on_current();
  void finish(Job& job);

  const int threads_;
  const std::chrono::microseconds spin_;
  const unsigned forks_;
  std::atomic<bool> thread0_taken_;
  std::mutex queue_lock_;
  std::atomic<Job*> current_{nullptr};  // the queue's first
  Job* last_ = nullptr;
  std::uint64_t submitted_ = 0;
  alignas(64) std::atomic<std::uint64_t> completed_{0};
  EventCount progress_;  // a job was completed, or thread 0's place became free
  Barrier barrier_;
  Spans spans_;
};

}  // namespace ktbench
