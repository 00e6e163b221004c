// Threads that run jobs together: a job is a list of phases with a barrier after each. Jobs run one after the other, in
// the order in which they were submitted, by whichever threads.
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

  // Throws std::runtime_error in a child of the process that made the team: after a fork its threads are not there, and
  // waiting for them would never end.
  void check_process() const;

  // These throw as check_process() does.
  // Returns at once. What the phases hold is destroyed with the job: on any thread, unless the ticket is still held.
  // The tag identifies the job in spans().
  std::shared_ptr<Job> submit(std::vector<Phase> phases, int tag = untagged);

  // Returns when the job is done; the first exception of any of its threads is thrown here, once, and its later phases
  // were skipped. Any thread may wait, never a phase of the same team. Where the team leaves the place of thread 0 to
  // its callers, one that waits works there, in this job and in all before it.
  // Throws std::invalid_argument for a job of another team.
  void wait(Job& job);
  // Whether wait() would return at once. Where callers are thread 0, no job is done before a caller waits.
  bool done(const Job& job) const;

  // Submits and waits. Callers take turns.
  void run(std::span<const Phase> phases, int tag = untagged);
  void run(const Phase& phase) { run(std::span(&phase, 1)); }

  // When each job's first thread began it, and when the job was done; in order and apart, for jobs run one by one. A
  // job counts before its waiter returns.
  std::vector<Span> spans() { return spans_.take(); }
  std::int64_t busy_ns() const { return spans_.busy_ns(); }

 protected:
  enum class Thread0 { caller, own };
  Team(int threads, std::chrono::microseconds spin, Thread0 thread0);

  // By the caller as thread 0: sees to it that every thread takes part in the current job, itself included. Throws when
  // that cannot be; then none may have.
  virtual void enter() = 0;
  void take_part(int thread);

  // Completes the job that has begun, drops those that have not.
  void settle();

  bool in_own_process() const;

  EventCount begun_;  // jobs, one by one, as the team's own threads may take part in them

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
