#include "runtime/team.h"

#include <pthread.h>

#include <exception>
#include <stdexcept>
#include <utility>

namespace ktbench {

struct Job {
  Job(const Team& its_team, std::vector<Team::Phase> its_phases, int its_tag)
      : team(its_team), owned(std::move(its_phases)), phases(owned), tag(its_tag) {}
  Job(const Team& its_team, std::span<const Team::Phase> its_phases, int its_tag)
      : team(its_team), phases(its_phases), tag(its_tag) {}

  // Called by every thread: the first one counts.
  void note_begin() {
    if (begin_ns.load(std::memory_order_relaxed)) return;
    std::int64_t unset = 0;
    begin_ns.compare_exchange_strong(unset, monotonic_ns(), std::memory_order_relaxed);
  }

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
  const int tag;
  std::atomic<std::int64_t> begin_ns{0};  // 0 until a thread takes part
  std::uint64_t number = 0;   // its place in the team's order, from 1
  std::shared_ptr<Job> self;  // keeps it alive in the queue, unless it lies on its caller's stack
  Job* next = nullptr;
  std::atomic<bool> failed{false};
  std::exception_ptr failure;
};

namespace {

std::atomic<unsigned> forks{0};

// The number of forks between this process and the first caller.
unsigned forks_so_far() {
  static const int refused = pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1, std::memory_order_relaxed); });
  return refused ? 0 : forks.load(std::memory_order_relaxed);
}

void drop(Job* job) {
  while (job) {
    const std::shared_ptr<Job> dropped = std::move(job->self);
    job = job->next;
  }
}

}  // namespace

Team::Team(int threads, std::chrono::microseconds spin, Thread0 thread0)
    : threads_(threads),
      spin_(spin),
      forks_(forks_so_far()),
      thread0_taken_(thread0 == Thread0::own),
      barrier_(threads, spin) {
  if (threads < 1) throw std::invalid_argument("a team needs at least one thread");
}

Team::~Team() { drop(current_); }

bool Team::in_own_process() const { return forks_so_far() == forks_; }

void Team::check_process() const {
  if (!in_own_process())
    throw std::runtime_error("the threads of this team belong to the process that made it: make another after a fork");
}

std::shared_ptr<Job> Team::submit(std::vector<Phase> phases, int tag) {
  check_process();  // before the job holds itself
  auto job = std::make_shared<Job>(*this, std::move(phases), tag);
  job->self = job;
  enqueue(*job);
  return job;
}

void Team::run(std::span<const Phase> phases, int tag) {
  Job job(*this, phases, tag);
  enqueue(job);
  wait(job);
}

void Team::wait(Job& job) {
  if (&job.team != this) throw std::invalid_argument("the job was submitted to another team");
  check_process();
  await(job.number);
  if (job.failed.exchange(false)) std::rethrow_exception(std::exchange(job.failure, nullptr));
}

bool Team::done(const Job& job) const { return completed(job.number); }

void Team::enqueue(Job& job) {
  check_process();
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

// False when another caller works there.
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

// With the last arrival the job is over: after that only the last thread may touch it.
void Team::take_part(int thread) {
  Job& job = *current_.load(std::memory_order_acquire);
  job.note_begin();
  const std::span<const Phase> phases = job.phases;
  for (std::size_t i = 0; i < phases.size(); ++i) {
    if (i > 0) barrier_.arrive_and_wait();
    job.run_guarded(phases[i], thread);
  }
  if (barrier_.arrive()) finish(job);
}

// The next job may begin before waiters are notified: waking those that are parked takes microseconds.
void Team::finish(Job& job) {
  if (const std::int64_t begin_ns = job.begin_ns.load(std::memory_order_relaxed))
    spans_.note({job.tag, begin_ns, monotonic_ns()});
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
  if (next) begun_.advance();
  progress_.advance();
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
