// The arguments of a call: arrays and options, checked.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "binding/arrays.h"
#include "moe/forward.h"

namespace ktbench::binding {

// Which kernels run: avx2, avx512, amx, the latter two (split by tokens per expert), or one ISA by name. There is no
// default.
struct KernelChoice {
  bool avx2 = false;
  bool avx512 = false;
  bool amx = false;
  std::optional<int> amx_min_tokens;  // none: from the crossover of AMX on
  std::optional<std::string> isa;
  bool dynamic = false;
  bool numa = false;

  ForwardOptions options(const Geometry& geometry) const;

 private:
  KernelPair pair(const Format& format) const;
};

// A call's operator, arrays and options, which a submission must keep alive. Throws TypeError, ValueError and
// RuntimeError that name the argument.
struct Request {
  std::shared_ptr<MoE> moe;
  py::array hidden, ids, gates, out;
  ForwardInputs inputs;
  ForwardOptions options;

  Request(std::shared_ptr<MoE> moe, py::array hidden, py::array ids, py::array gates, py::array out,
          const KernelChoice& chosen);
};

// By the names of counter_table.
py::dict numbers_of(const Counters& counters);

}  // namespace ktbench::binding
