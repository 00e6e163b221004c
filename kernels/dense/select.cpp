#include "dense/select.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "core/activations.h"

namespace ktbench {
namespace {

constexpr std::uint32_t last_id = most_selectable - 1;

// Keys are ordered like the logits, for equal logits by descending id. Zeros of both signs are equal.
std::uint32_t key_of(bf16 logit, int id) {
  const std::uint32_t bits = logit == 0x8000 ? 0 : logit;
  const std::uint32_t ordered = bits & 0x8000 ? bits ^ 0xffff : bits | 0x8000;
  return ordered << 16 | (last_id - id);
}

int id_of(std::uint32_t key) { return static_cast<int>(last_id - (key & last_id)); }

float sum_of(const float* numbers, int count) {
  float sum = 0;
  for (int i = 0; i < count; ++i) sum += numbers[i];
  return sum;
}

struct Selector {
  const Selection& call;
  std::vector<std::uint32_t> keys = std::vector<std::uint32_t>(call.experts);
  std::vector<float> weights = std::vector<float>(call.top_k);

  void select(const bf16* logits) {
    for (int e = 0; e < call.experts; ++e) keys[e] = key_of(logits[e], e);
    std::partial_sort(keys.begin(), keys.begin() + call.top_k, keys.end(), std::greater<>());
  }

  void weigh(const bf16* logits) {
    const float largest = widen(logits[id_of(keys[0])]);
    float total = 0;
    for (int e = 0; e < call.experts; ++e) total += std::exp(widen(logits[e]) - largest);
    for (int i = 0; i < call.top_k; ++i) weights[i] = std::exp(widen(logits[id_of(keys[i])]) - largest) / total;
    if (!call.renormalised) return;
    const float sum = sum_of(weights.data(), call.top_k);
    for (float& weight : weights) weight /= sum;
  }

  void put(int token) const {
    const auto at = static_cast<std::size_t>(token) * call.top_k;
    std::transform(keys.begin(), keys.begin() + call.top_k, call.ids + at, id_of);
    if (call.rounded)
      std::transform(weights.begin(), weights.end(), call.rounded + at, to_bf16);
    else
      std::copy(weights.begin(), weights.end(), call.weights + at);
  }
};

}  // namespace

void select_experts(const Selection& call) {
  Selector selector{call};
  for (int t = 0; t < call.tokens; ++t) {
    const bf16* logits = call.logits + static_cast<std::size_t>(t) * call.experts;
    selector.select(logits);
    selector.weigh(logits);
    selector.put(t);
  }
}

}  // namespace ktbench
