#include "runtime/team.h"

#include <exception>
#include <stdexcept>
#include <utility>

namespace ktbench {

struct Job {
  Job(const Team& its_team, std::vector<Team::Phase> its_phases)
      : team(its_team), owned(std::move(its_phases)), phases(owned) {}
  Job(const Team& its_team, std::span<const Team::Phase> its_phases) : team(its_team), phases(its_phases) {}

  void run_guarded(const Team::Phase& phase, int thread) try {
    if (!failed.load(std::memory_order_relaxed)) phase(thread);
  } catch (...) {
    fail();
  }

  // Inside a catch block.
  void fail() {
    if (!failed.exchange(true)) failure = std::current_exception();
  }

  const Team& team;
  const std::vector<Team::Phase> owned;
  const std::span<const Team::Phase> phases;
  std::uint64_t number = 0;   // its place in the team's order, from 1
  std::shared_ptr<Job> self;  // keeps it alive in the queue, unless it lies on its caller's stack
  Job* next = nullptr;
  std::atomic<bool> failed{false};
  std::exception_ptr failure;
};

namespace {

void drop(Job* job) {
  while (job) {
    const std::shared_ptr<Job> dropped = std::move(job->self);
    job = job->next;
  }
}

}  // namespace

Team::Team(int threads, std::chrono::microseconds spin, Thread0 thread0)
    : threads_(threads), spin_(spin), thread0_taken_(thread0 == Thread0::own), barrier_(threads, spin) {
  if (threads < 1) throw std::invalid_argument("a team needs at least one thread");
}

Team::~Team() { drop(current_); }

std::shared_ptr<Job> Team::submit(std::vector<Phase> phases) {
  auto job = std::make_shared<Job>(*this, std::move(phases));
  job->self = job;
  enqueue(*job);
  return job;
}

void Team::run(std::span<const Phase> phases) {
  Job job(*this, phases);
  enqueue(job);
  wait(job);
}

void Team::wait(Job& job) {
  if (&job.team != this) throw std::invalid_argument("the job was submitted to another team");
  await(job.number);
  if (job.failed.exchange(false)) std::rethrow_exception(std::exchange(job.failure, nullptr));
}

void Team::enqueue(Job& job) {
  {
    const std::lock_guard lock(queue_lock_);
    job.number = ++submitted_;
    Job* const before = std::exchange(last_, &job);
    if (before) {
      before->next = &job;
      return;
    }
    current_.store(&job, std::memory_order_release);
  }
  begun_.advance();
}

void Team::await(std::uint64_t number) {
  for (;;) {
    const std::uint32_t seen = progress_.value();
    if (completed(number)) return;
    if (!work_as_thread0(number)) progress_.await_change(seen, spin_);
  }
}

// False when somebody else works there.
bool Team::work_as_thread0(std::uint64_t up_to) {
  if (thread0_taken_.exchange(true, std::memory_order_acquire)) return false;
  while (!completed(up_to)) work_on_current();
  thread0_taken_.store(false, std::memory_order_release);
  progress_.advance();
  return true;
}

void Team::work_on_current() {
  Job& job = *current_.load(std::memory_order_acquire);
  const std::uint64_t number = job.number;
  try {
    enter();
  } catch (...) {
    job.fail();
    finish(job);
  }
  await(number);
}

// With the last arrival the job is over: only the thread that came last may touch it still.
void Team::take_part(int thread) {
  Job& job = *current_.load(std::memory_order_acquire);
  const std::span<const Phase> phases = job.phases;
  for (std::size_t i = 0; i < phases.size(); ++i) {
    if (i > 0) barrier_.arrive_and_wait();
    job.run_guarded(phases[i], thread);
  }
  if (barrier_.arrive()) finish(job);
}

void Team::finish(Job& job) {
  const std::uint64_t number = job.number;
  const std::shared_ptr<Job> self = std::move(job.self);
  Job* next;
  {
    const std::lock_guard lock(queue_lock_);
    next = job.next;
    if (!next) last_ = nullptr;
    current_.store(next, std::memory_order_release);
  }
  completed_.store(number, std::memory_order_release);
  progress_.advance();
  if (next) begun_.advance();
}

void Team::settle() {
  std::uint64_t number;
  {
    const std::lock_guard lock(queue_lock_);
    Job* const begun = current_;
    if (!begun) return;
    drop(std::exchange(begun->next, nullptr));
    last_ = begun;
    number = begun->number;
  }
  await(number);
}

}  // namespace ktbench
