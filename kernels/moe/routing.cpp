#include "moe/routing.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace ktbench {
namespace {

[[noreturn]] void refuse(const Routing& routing, std::int64_t assignment, int experts) {
  throw std::out_of_range("expert id " + std::to_string(routing.ids[assignment]) + " of token " +
                          std::to_string(assignment / routing.per_token) + " is not in 0.." +
                          std::to_string(experts - 1) + " (or -1 for none)");
}

}  // namespace

void Grouping::arrange(const Routing& routing, int experts) {
  count(routing, experts);
  form_groups();
  fill(routing);
}

void Grouping::count(const Routing& routing, int experts) {
  next_.assign(experts, 0);
  const std::int64_t assignments = std::int64_t{routing.tokens} * routing.per_token;
  for (std::int64_t a = 0; a < assignments; ++a) {
    const std::int64_t id = routing.ids[a];
    if (id == no_expert) continue;
    if (id < 0 || id >= experts) refuse(routing, a, experts);
    ++next_[id];
  }
}

void Grouping::form_groups() {
  active_.clear();
  largest_ = 0;
  int slot = 0;
  for (int expert = 0; expert < static_cast<int>(next_.size()); ++expert) {
    const int count = next_[expert];
    if (count) active_.push_back({expert, slot, count});
    largest_ = std::max(largest_, count);
    next_[expert] = slot;
    slot += count;
  }
  token_.resize(slot);
  gate_.resize(slot);
}

void Grouping::fill(const Routing& routing) {
  const std::int64_t assignments = std::int64_t{routing.tokens} * routing.per_token;
  for (std::int64_t a = 0; a < assignments; ++a) {
    if (routing.ids[a] == no_expert) continue;
    const int slot = next_[routing.ids[a]]++;
    token_[slot] = static_cast<int>(a / routing.per_token);
    gate_[slot] = routing.gates[a];
  }
}

}  // namespace ktbench
