// The gated activation of an expert, in the parameters of model configurations.
#pragma once

#include <cmath>
#include <limits>
#include <string>

#include "core/kernels.h"

namespace ktbench {

// silu: g sigmoid(alpha g). gelu_tanh: g / 2 (1 + tanh(sqrt(2 / pi) (g + 0.044715 g^3))), without an alpha.
enum class Act : std::uint8_t { silu, gelu_tanh };
inline constexpr int acts = 2;

// h = act(g) (u + offset), g = min(gate, limit), u = clamp(up, -limit, limit), with gate and up including their biases.
struct Glu {
  Act act = Act::silu;
  double alpha = 1;
  double limit = std::numeric_limits<double>::infinity();
  double offset = 0;

  bool operator==(const Glu&) const = default;
};

// The error in it, "" for none.
inline std::string error_in(const Glu& glu) {
  const std::string alpha = "alpha=" + std::to_string(glu.alpha);
  if (!(glu.alpha > 0) || std::isinf(glu.alpha)) return alpha + " must be positive and finite";
  if (glu.act == Act::gelu_tanh && glu.alpha != 1) return alpha + " is of silu: gelu_tanh takes 1 alone";
  if (!(glu.limit > 0)) return "limit=" + std::to_string(glu.limit) + " must be positive";
  if (!std::isfinite(glu.offset)) return "offset=" + std::to_string(glu.offset) + " must be finite";
  return "";
}

// (1 + tanh(z)) / 2 = sigmoid(2 z): both are the same except for two constants.
inline Gating gating_of(const Glu& glu) {
  constexpr double slope = 1.5957691216057308;  // 2 sqrt(2 / pi)
  const bool gelu = glu.act == Act::gelu_tanh;
  return {static_cast<float>(gelu ? slope : glu.alpha), static_cast<float>(gelu ? slope * 0.044715 : 0),
          static_cast<float>(glu.limit), static_cast<float>(glu.offset)};
}

}  // namespace ktbench
