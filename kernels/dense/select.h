// Selects experts and their weights from a router's logits.
#pragma once

#include <cstdint>

#include "core/layout.h"

namespace ktbench {

inline constexpr int most_selectable = 1 << 16;  // experts that a selection can distinguish

struct Selection {
  const bf16* logits;  // [tokens, experts]
  int tokens, experts, top_k;
  bool renormalised;  // weights are divided by their sum
  std::int64_t* ids;  // [tokens, top_k]
  bf16* rounded;      // [tokens, top_k], or null
    float* weights;     // [tokens, top_k] if `rounded` is null
};

// Softmax over all experts in float32, and the top_k largest in descending order, for equal logits the lower id first.
// A token with a NaN or infinite logit gets NaN weights.
void select_experts(const Selection& call);

}  // namespace ktbench
