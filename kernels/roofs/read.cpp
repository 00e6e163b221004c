#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "roofs/rate.h"
#include "roofs/roofs.h"
#include "runtime/isa.h"

namespace ktbench {
namespace {

constexpr std::size_t grain = 4096;

// 32-byte loads read faster than 64-byte ones: by 15 % on Granite Rapids, 4 % on Zen 4. Two streams with prefetches
// read 5 to 10 % more than one on Granite Rapids, and less on Zen 4: the roof is the better one.
std::vector<ReadLoop> read_loops() {
#ifdef __x86_64__
  if (granted("avx2")) return {read_avx2, read_avx2_pairs};
#endif
  return {read_reference};
}

constexpr std::size_t piece = 1 << 20;  // 0.1 ms between clock readings
constexpr int trials = 5;
constexpr double trial_seconds = 0.002;

}  // namespace

ReadRoof::ReadRoof(std::shared_ptr<Team> team, std::size_t bytes)
    : team_(std::move(team)),
      part_bytes_(bytes / team_->threads() / grain * grain),
      piece_bytes_(std::min(piece, part_bytes_)),
      positions_(team_->threads()) {
  if (part_bytes_ == 0) throw std::invalid_argument("a read roof needs at least one page per thread");
  for (int thread = 0; thread < team_->threads(); ++thread) parts_.emplace_back(part_bytes_);
  team_->run([&](int thread) { std::memset(parts_[thread].as<>(), 1, part_bytes_); });
  choose_loop();
}

// Decided by the medians of a few alternating samples.
void ReadRoof::choose_loop() {
  const std::vector<ReadLoop> loops = read_loops();
  std::vector<std::vector<double>> rates(loops.size());
  for (int trial = 0; trial < trials; ++trial)
    for (std::size_t i = 0; i < loops.size(); ++i) {
      read_ = loops[i];
      rates[i].push_back(sample(trial_seconds));
    }
  const auto median = [](std::vector<double>& of) {
    std::sort(of.begin(), of.end());
    return of[of.size() / 2];
  };
  std::size_t best = 0;
  for (std::size_t i = 1; i < loops.size(); ++i)
    if (median(rates[i]) > median(rates[best])) best = i;
  read_ = loops[best];
}

void ReadRoof::read_piece(int thread) {
  std::size_t& at = positions_[thread];
  if (at + piece_bytes_ > part_bytes_) at = 0;
  read_(parts_[thread].as<>() + at, piece_bytes_);
  at += piece_bytes_;
}

double ReadRoof::sample(double seconds) {
  if (!(seconds >= 0 && seconds <= 60)) throw std::invalid_argument("a read roof is sampled for 0 to 60 seconds");
  return rate_of(*team_, seconds, [&](int thread) {
    read_piece(thread);
    return static_cast<double>(piece_bytes_);
  });
}

void ReadRoof::read_once() {
  team_->run([&](int thread) {
    for (std::size_t pieces = part_bytes_ / piece_bytes_; pieces > 0; --pieces) read_piece(thread);
  });
}

}  // namespace ktbench
