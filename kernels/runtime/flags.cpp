#include "runtime/flags.h"

#include <sched.h>

#include <stdexcept>

#include "runtime/waiting.h"

namespace ktbench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int pauses_per_look = 16;  // between polls of the words
constexpr int looks_per_yield = 64;
// A device without requests for this long is between two steps; after `unused`, nobody waits for a step.
constexpr std::chrono::milliseconds spin(2), unused(1000);
constexpr std::chrono::microseconds nap(20), long_nap(1000);

void pause() {
  for (int i = 0; i < pauses_per_look; ++i) spin_pause();
}

std::atomic_ref<std::uint32_t> shared(std::uint32_t& word) { return std::atomic_ref<std::uint32_t>(word); }

}  // namespace

FlagWatch::FlagWatch(std::span<std::uint32_t> asks, std::span<std::uint32_t> answers, std::chrono::nanoseconds limit)
    : asks_(asks), answers_(answers), limit_(limit) {
  if (answers.size() < asks.size()) throw std::invalid_argument("fewer answers than asks");
  work_.reserve(asks.size());
  thread_ = std::thread(&FlagWatch::serve, this);
}

FlagWatch::~FlagWatch() {
  closing_.store(true, std::memory_order_relaxed);
  thread_.join();
}

int FlagWatch::add(const Work& work) {
  const std::lock_guard lock(lock_);
  if (!free_.empty()) {
    const int slot = free_.back();
    free_.pop_back();
    work_[slot] = work;
    return slot;
  }
  if (work_.size() == asks_.size()) throw std::length_error("all slots of the flags are taken");
  shared(asks_[work_.size()]).store(nothing, std::memory_order_relaxed);
  work_.push_back(work);
  used_.store(static_cast<int>(work_.size()), std::memory_order_release);
  return static_cast<int>(work_.size()) - 1;
}

void FlagWatch::remove(int slot) {
  const std::lock_guard lock(lock_);
  free_.push_back(slot);
}

void FlagWatch::check() const {
  if (late_.load(std::memory_order_acquire)) throw std::runtime_error("the host took too long for what a device asked by a flag");
}

void FlagWatch::serve() {
  auto last = Clock::now();
  for (int look = 1; !closing_.load(std::memory_order_relaxed); ++look) {
    if (answer_all()) {
      last = Clock::now();
      continue;
    }
    pause();
    if (look % looks_per_yield == 0) sched_yield();
    const auto idle = Clock::now() - last;
    if (idle > spin) std::this_thread::sleep_for(idle > unused ? long_nap : nap);
  }
}

bool FlagWatch::answer_all() {
  bool any = false;
  for (int slot = 0, used = used_.load(std::memory_order_acquire); slot < used; ++slot) {
    const std::uint32_t ask = shared(asks_[slot]).load(std::memory_order_acquire);
    if (ask == nothing) continue;
    // Before the answer, after which the device may ask again.
    shared(asks_[slot]).store(nothing, std::memory_order_relaxed);
    answer(slot, ask);
    shared(answers_[slot]).store(1, std::memory_order_release);
    any = true;
  }
  return any;
}

void FlagWatch::answer(int slot, std::uint32_t ask) {
  if (late_.load(std::memory_order_relaxed)) return;
  Work work;
  {
    const std::lock_guard lock(lock_);
    work = work_[slot];
  }
  if (ask == begin_and_end) work.begin(work.data);
  if (ends(work)) {
    work.end(work.data);
    answered_.fetch_add(1, std::memory_order_relaxed);
  } else {
    late_.store(true, std::memory_order_release);
  }
}

bool FlagWatch::ends(const Work& work) const {
  const auto deadline = Clock::now() + limit_;
  for (int look = 1; !work.done(work.data); ++look) {
    if (Clock::now() > deadline) return false;
    pause();
    if (look % looks_per_yield == 0) sched_yield();
  }
  return true;
}

}  // namespace ktbench
