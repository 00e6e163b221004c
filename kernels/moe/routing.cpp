#include "moe/routing.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace ktbench {
namespace {

[[noreturn]] void refuse(std::int64_t id, std::int64_t token, int experts) {
  throw std::out_of_range("expert id " + std::to_string(id) + " of token " + std::to_string(token) + " is not in 0.." +
                          std::to_string(experts - 1) + " (or -1 for none)");
}

// Read once: another thread may write to the array, and what was checked must be what is used.
std::int64_t read_once(const std::int64_t& id) { return const_cast<const volatile std::int64_t&>(id); }

}  // namespace

void Grouping::arrange(const Routing& routing, int experts) {
  count(routing, experts);
  form_groups();
  fill(routing);
}

void Grouping::count(const Routing& routing, int experts) {
  next_.assign(experts, 0);
  const std::int64_t assignments = std::int64_t{routing.tokens} * routing.per_token;
  expert_.resize(assignments);
  for (std::int64_t a = 0; a < assignments; ++a) {
    const std::int64_t id = read_once(routing.ids[a]);
    if (id != no_expert && (id < 0 || id >= experts)) refuse(id, a / routing.per_token, experts);
    expert_[a] = static_cast<int>(id);
    if (id != no_expert) ++next_[id];
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
  for (std::int64_t a = 0; a < static_cast<std::int64_t>(expert_.size()); ++a) {
    if (expert_[a] == no_expert) continue;
    const int slot = next_[expert_[a]]++;
    token_[slot] = static_cast<int>(a / routing.per_token);
    gate_[slot] = routing.gates[a];
  }
}

}  // namespace ktbench
