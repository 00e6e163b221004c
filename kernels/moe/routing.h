// Which tokens go to which expert, as contiguous slots: by expert, with tokens in order within each.
#pragma once

#include <cstdint>
#include <vector>

namespace ktbench {

// ids, gates: [tokens, per_token]. An id of -1 means no expert: its slot is left out.
struct Routing {
  const std::int64_t* ids;
  const float* gates;
  int tokens;
  int per_token;
};

inline constexpr std::int64_t no_expert = -1;

struct Group {
  int expert;
  int first;  // slot
  int count;
};

class Grouping {
 public:
  // Throws std::out_of_range naming the first id that is neither no_expert nor in 0..experts-1. A token may name an
  // expert more than once.
  void arrange(const Routing& routing, int experts);

  const std::vector<Group>& active() const { return active_; }
  const int* token(int slot) const { return token_.data() + slot; }
  const float* gate(int slot) const { return gate_.data() + slot; }
  int slots() const { return static_cast<int>(token_.size()); }
  int largest() const { return largest_; }

 private:
  void count(const Routing& routing, int experts);
  void form_groups();
  void fill(const Routing& routing);

    std::vector<int> expert_;  // per assignment: its checked id
  std::vector<int> next_;    // per expert: its count, then its next free slot
  std::vector<Group> active_;
  std::vector<int> token_;
  std::vector<float> gate_;
  int largest_ = 0;
};

}  // namespace ktbench
