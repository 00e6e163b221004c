#include "binding/request.h"

#include <utility>

#include "runtime/isa.h"

namespace ktbench::binding {
namespace {

ForwardInputs checked_inputs(const Geometry& g, const py::array& hidden, const py::array& ids, const py::array& gates,
                             py::array& out) {
  check(hidden, {"hidden", py::dtype::of<bf16>(), {-1, g.hidden}});
  const py::ssize_t tokens = hidden.shape(0);
  check(ids, {"ids", py::dtype::of<std::int64_t>(), {tokens, -1}});
  const py::ssize_t per_token = ids.shape(1);
  if (per_token < 1) throw py::value_error("ids must name at least one expert per token");
  check(gates, {"gates", py::dtype::of<float>(), {tokens, per_token}});
  check(out, {"out", py::dtype::of<bf16>(), {tokens, g.hidden}});
  check_writeable(out, "out");
  check_contiguous(hidden, "hidden"), check_contiguous(ids, "ids"), check_contiguous(gates, "gates");
  check_contiguous(out, "out");
  checked_count("tokens * experts per token", tokens * per_token);
  return {static_cast<const bf16*>(hidden.data()),
          {static_cast<const std::int64_t*>(ids.data()), static_cast<const float*>(gates.data()),
           static_cast<int>(tokens), static_cast<int>(per_token)},
          static_cast<bf16*>(out.mutable_data())};
}

}  // namespace

KernelPair KernelChoice::pair(const Format& format) const {
  const int vectors = avx2 + avx512;
  if (isa && (vectors || amx))
    throw py::value_error("isa=" + *isa + " excludes avx2, avx512 and amx: set one or the other");
  if (!isa && !vectors && !amx) throw py::value_error("no kernels chosen: set avx2, avx512, amx or isa");
  if (avx2 && (avx512 || amx)) throw py::value_error("avx2 excludes avx512 and amx: set one or the others");
  const int many_from = amx_min_tokens.value_or(0);
  if (many_from < 0) throw py::value_error("amx_min_tokens=" + std::to_string(many_from) + " must not be negative");
  const char* feature = amx ? "amx" : avx512 ? "avx512" : "avx2";
  const Kernels* many = isa ? &kernels_of(*isa, format) : &fastest_of_feature(feature, format);
  const Kernels* few = avx512 ? &fastest_of_feature("avx512", format) : many;
  return {few, many, amx_min_tokens.has_value() ? many_from : many->crossover.block_from};
}

ForwardOptions KernelChoice::options(const Geometry& g) const {
  return {pair(g.format), pair(g.down_format()), dynamic, numa};
}

Request::Request(std::shared_ptr<MoE> moe_, py::array hidden_, py::array ids_, py::array gates_, py::array out_,
                 const KernelChoice& chosen)
    : moe(std::move(moe_)), hidden(std::move(hidden_)), ids(std::move(ids_)), gates(std::move(gates_)),
      out(std::move(out_)), inputs(checked_inputs(moe->experts().geometry(), hidden, ids, gates, out)),
      options(chosen.options(moe->experts().geometry())) {}

py::dict numbers_of(const Counters& counters) {
  py::dict numbers;
  for (const CounterTraits& counter : counter_table) numbers[counter.name] = counters.*counter.value;
  return numbers;
}

}  // namespace ktbench::binding
