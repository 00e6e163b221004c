#include "runtime/spans.h"

#include <algorithm>
#include <utility>

namespace ktbench {

void Spans::note(const Span& span) {
  const std::lock_guard lock(lock_);
  (*ring_)[noted_++ % kept] = span;
  busy_ns_.fetch_add(span.end_ns - span.begin_ns, std::memory_order_relaxed);
}

// Memory is allocated and copied outside the lock, while jobs keep recording.
std::vector<Span> Spans::take() {
  std::unique_ptr<Ring> ring = std::make_unique_for_overwrite<Ring>();
  std::uint64_t noted;
  {
    const std::lock_guard lock(lock_);
    std::swap(ring_, ring);
    noted = std::exchange(noted_, 0);
  }
  std::vector<Span> spans(ring->begin(), ring->begin() + std::min<std::uint64_t>(noted, kept));
  if (noted > kept) std::rotate(spans.begin(), spans.begin() + noted % kept, spans.end());
  return spans;
}

}  // namespace ktbench
