// Host functions that a device requests through words of shared memory: like a stream's host functions, but without the
// driver's thread in between.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace ktbench {

// A thread that polls words. For each slot the device writes 0 to its answer, then an Ask; the thread resets that to 0,
// performs the request, and writes 1 to the answer, for which the device waits. A device cannot stop waiting, so every
// request is answered: if the work takes longer than the limit, this and all later requests are answered without
// performing them; check() reports it.
class FlagWatch {
 public:
  enum Ask : std::uint32_t { nothing = 0, begin_and_end = 1, end_alone = 2 };
  struct Work {
    void (*begin)(void* data);
    bool (*done)(void* data);  // whether end() would return at once
    void (*end)(void* data);
    void* data;
  };

  // As many slots as there are words; the memory must outlive this. The thread may run where the calling one may.
  // Throws std::invalid_argument if there are fewer answers than asks.
  FlagWatch(std::span<std::uint32_t> asks, std::span<std::uint32_t> answers, std::chrono::nanoseconds limit);
    ~FlagWatch();  // no requests may follow

  // The slot of work that can be requested until remove(), before which its requests must be answered. Throws
  // std::length_error if all are taken.
  int add(const Work& work);
  void remove(int slot);

  // Throws std::runtime_error once work has taken longer than the limit.
  void check() const;
  std::int64_t answered() const { return answered_.load(std::memory_order_relaxed); }  // of those that were done

 private:
  void serve();
  bool answer_all();
  void answer(int slot, std::uint32_t ask);
  bool ends(const Work& work) const;

  const std::span<std::uint32_t> asks_, answers_;
  const std::chrono::nanoseconds limit_;
  mutable std::mutex lock_;  // of work_ and free_
  std::vector<Work> work_;
  std::vector<int> free_;
  std::atomic<int> used_{0};  // slots below may be asked
  std::atomic<bool> closing_{false}, late_{false};
  std::atomic<std::int64_t> answered_{0};
  std::thread thread_;
};

}  // namespace ktbench
