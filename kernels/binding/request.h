// The arguments of a call: arrays and options, checked.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "binding/arrays.h"
#include "moe/forward.h"

namespace ktbench::binding {

// +v, +m, both (split by tokens per expert), or one ISA named outright. Nothing is chosen that was not asked for.
struct Chosen {
  bool avx512 = false;
  bool amx = false;
  int amx_min_tokens = 5;
  std::optional<std::string> isa;
  bool dynamic = false;
  bool numa = false;

  ForwardOptions options(Precision precision) const;
};

// A call's operator, arrays and options: what a submission has to keep alive. Throws TypeError, ValueError and
// RuntimeError in words of the arguments.
struct Request {
  std::shared_ptr<MoE> moe;
  py::array hidden, ids, gates, out;
  ForwardInputs inputs;
  ForwardOptions options;

  Request(std::shared_ptr<MoE> moe, py::array hidden, py::array ids, py::array gates, py::array out,
          const Chosen& chosen);
};

}  // namespace ktbench::binding
