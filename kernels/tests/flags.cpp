// Words that a device writes: every request is answered, and a slow one is reported.
#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

#include "runtime/flags.h"
#include "tests/check.h"

namespace ktbench::tests {
namespace {

using namespace std::chrono_literals;

// Work that counts what is asked of it; it is done while `is_done`.
struct Counting {
  std::atomic<int> begun{0}, ended{0};
  std::atomic<bool> is_done{true};

  FlagWatch::Work work() {
    return {[](void* self) { ++static_cast<Counting*>(self)->begun; },
            [](void* self) { return static_cast<Counting*>(self)->is_done.load(); },
            [](void* self) { ++static_cast<Counting*>(self)->ended; }, this};
  }
};

// The device's side of a slot.
struct Slot {
  std::uint32_t& ask;
  std::uint32_t& answer;

  void put(FlagWatch::Ask what) {
    std::atomic_ref(answer).store(0);
    std::atomic_ref(ask).store(what);
  }
  bool answered() { return std::atomic_ref(answer).load() == 1; }
  void await() {
    while (!answered()) std::this_thread::yield();
  }
};

struct Words {
  std::vector<std::uint32_t> asks = std::vector<std::uint32_t>(3), answers = std::vector<std::uint32_t>(3);
  Slot slot(int number) { return {asks[number], answers[number]}; }
};

KTBENCH_TEST(what_flags_ask_for_is_done_once_and_answered) {
  Words words;
  FlagWatch watch(words.asks, words.answers, 10s);
  Counting first, second;
  const int one = watch.add(first.work()), other = watch.add(second.work());
  for (int turn = 1; turn <= 100; ++turn) {
    words.slot(one).put(FlagWatch::begin_and_end), words.slot(other).put(FlagWatch::begin_and_end);
    words.slot(other).await(), words.slot(one).await();
    check(first.begun == turn && first.ended == turn && second.begun == turn && second.ended == turn, "not once");
  }
  words.slot(one).put(FlagWatch::end_alone), words.slot(one).await();
  check(first.begun == 100 && first.ended == 101, "began what was only to end");
  watch.check();
  check(watch.answered() == 201, "miscounted");
}

KTBENCH_TEST(a_device_that_asks_after_a_pause_is_answered) {
  Words words;
  FlagWatch watch(words.asks, words.answers, 10s);
  Counting counting;
  const int slot = watch.add(counting.work());
  for (int turn = 0; turn < 3; ++turn) {
    std::this_thread::sleep_for(5ms);  // longer than the thread spins
    words.slot(slot).put(FlagWatch::begin_and_end), words.slot(slot).await();
  }
  check(counting.ended == 3, "missed one");
}

KTBENCH_TEST(a_flag_is_answered_when_its_work_is_done) {
  Words words;
  FlagWatch watch(words.asks, words.answers, 10s);
  Counting counting;
  counting.is_done = false;
  const int slot = watch.add(counting.work());
  words.slot(slot).put(FlagWatch::begin_and_end);
  while (counting.begun == 0) std::this_thread::yield();
  std::this_thread::sleep_for(1ms);
  check(!words.slot(slot).answered() && counting.ended == 0, "answered too early");
  counting.is_done = true;
  words.slot(slot).await();
  check(counting.ended == 1, "answered without an end");
}

KTBENCH_TEST(work_that_never_ends_is_an_error_and_no_hang) {
  Words words;
  FlagWatch watch(words.asks, words.answers, 5ms);
  Counting stuck, other;
  stuck.is_done = false;
  const int slot = watch.add(stuck.work()), next = watch.add(other.work());
  for (int turn = 0; turn < 2; ++turn) words.slot(slot).put(FlagWatch::begin_and_end), words.slot(slot).await();
  words.slot(next).put(FlagWatch::begin_and_end), words.slot(next).await();
  check(stuck.ended == 0 && stuck.begun == 1 && other.begun == 0, "something was done after the error");
  check_throws<std::runtime_error>([&] { watch.check(); }, "too long");
  check(watch.answered() == 0, "counted what was not done");
}

KTBENCH_TEST(slots_are_limited_and_given_back) {
  Words words;
  FlagWatch watch(words.asks, words.answers, 10s);
  Counting first, second;
  for (int number = 0; number < 3; ++number) check(watch.add(first.work()) == number, "another slot");
  check_throws<std::length_error>([&] { watch.add(second.work()); }, "taken");
  watch.remove(1);
  check(watch.add(second.work()) == 1, "the free slot was not taken");
  words.slot(1).put(FlagWatch::begin_and_end), words.slot(1).await();
  check(first.begun == 0 && second.begun == 1, "the slot has its former work");
  check_throws<std::invalid_argument>([&] { FlagWatch(words.asks, std::span(words.answers).first(2), 1s); }, "fewer");
}

}  // namespace
}  // namespace ktbench::tests
