#include <algorithm>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <string>

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

constexpr int trials = 5;

}  // namespace

ReadRoof::ReadRoof(std::shared_ptr<Team> team, std::size_t bytes)
    : team_(std::move(team)), part_bytes_(bytes / team_->threads() / grain * grain) {
  if (part_bytes_ == 0) throw std::invalid_argument("a read roof needs at least one page per thread");
  for (int thread = 0; thread < team_->threads(); ++thread) parts_.emplace_back(part_bytes_);
  team_->run([&](int thread) { std::memset(parts_[thread].as<>(), 1, part_bytes_); });
  choose_loop();
}

// By the medians of a few samples in turns.
void ReadRoof::choose_loop() {
  const std::vector<ReadLoop> loops = read_loops();
  std::vector<std::vector<double>> rates(loops.size());
  for (int trial = 0; trial < trials; ++trial)
    for (std::size_t i = 0; i < loops.size(); ++i) {
      read_ = loops[i];
      rates[i].push_back(sample(std::min(part_bytes_, std::size_t{16} << 20) * team_->threads()));
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

double ReadRoof::sample(std::size_t bytes) {
  const std::size_t span = bytes / team_->threads() / grain * grain;
  if (span == 0 || span > part_bytes_)
    throw std::invalid_argument("a sample of " + std::to_string(bytes) + " bytes does not fit the read roof's buffer");
  if (position_ + span > part_bytes_) position_ = 0;
  const auto begin = std::chrono::steady_clock::now();
  team_->run([&](int thread) { read_(parts_[thread].as<>() + position_, span); });
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  position_ += span;
  return static_cast<double>(span) * team_->threads() / took.count();
}

}  // namespace ktbench
