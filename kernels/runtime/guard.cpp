#include "runtime/guard.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <mutex>
#include <stdexcept>
#include <string_view>
#include <system_error>

namespace ktbench {
namespace {

struct Range {
  std::uintptr_t begin, end;
};

// Read by the handler, which may neither wait nor allocate.
std::array<Range, 1 << 16> ranges;
std::atomic<std::size_t> ranges_used{0};
struct sigaction before;
std::atomic<bool> passed_on{false};

constexpr std::string_view reason = "something wrote to weights that other rows use, which is forbidden\n";

void on_fault(int, siginfo_t* info, void*) {
  const auto at = reinterpret_cast<std::uintptr_t>(info->si_addr);
  for (std::size_t i = 0; i < ranges_used.load(std::memory_order_acquire); ++i)
    if (ranges[i].begin <= at && at < ranges[i].end) {
      [[maybe_unused]] const auto written = write(STDERR_FILENO, reason.data(), reason.size());
      _exit(1);
    }
  // The handler before this one may hand the signal back, as Python's does where it was enabled in between.
  if (passed_on.exchange(true))
    signal(SIGSEGV, SIG_DFL);
  else
    sigaction(SIGSEGV, &before, nullptr);
  // The same instruction faults again; what a process has sent comes once.
  if (info->si_code <= 0) raise(SIGSEGV);
}

// Others set handlers as well (Python's faulthandler, in either direction), so being installed once is not enough.
void install() {
  struct sigaction action = {}, current;
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO;
  if (sigaction(SIGSEGV, nullptr, &current) != 0) throw std::system_error(errno, std::generic_category(), "sigaction");
  if ((current.sa_flags & SA_SIGINFO) && current.sa_sigaction == on_fault) return;
  before = current;
  if (sigaction(SIGSEGV, &action, nullptr) != 0) throw std::system_error(errno, std::generic_category(), "sigaction");
}

}  // namespace

void guard_pages(std::uintptr_t begin, std::size_t bytes) {
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  if (begin % page || bytes % page || !bytes) throw std::invalid_argument("guarded memory must be whole pages");
  install();
  const std::size_t used = ranges_used;
  if (used == ranges.size()) throw std::length_error("too many ranges of memory are guarded");
  if (mprotect(reinterpret_cast<void*>(begin), bytes, PROT_READ) != 0)
    throw std::system_error(errno, std::generic_category(), "mprotect");
  ranges[used] = {begin, begin + bytes};
  ranges_used.store(used + 1, std::memory_order_release);
}

}  // namespace ktbench
