#include "binding/arrays.h"
#include "binding/module.h"
#include "moe/forward.h"
#include "runtime/isa.h"

#include <pybind11/stl.h>

#include <climits>
#include <optional>

namespace ktbench::binding {
namespace {

int checked_count(const char* name, py::ssize_t n) {
  if (n > INT_MAX) throw py::value_error(std::string(name) + "=" + std::to_string(n) + " is too large");
  return static_cast<int>(n);
}

std::shared_ptr<PackedExperts> make_experts(int experts, int hidden, int intermediate) {
  return std::make_shared<PackedExperts>(Geometry{experts, hidden, intermediate});
}

void write_expert(PackedExperts& experts, int index, const py::array& gate, const py::array& up, const py::array& down,
                  Team* team) {
  const Geometry& g = experts.geometry();
  const MatrixView gate_view = matrix(gate, "gate", g.intermediate, g.hidden);
  const MatrixView up_view = matrix(up, "up", g.intermediate, g.hidden);
  const MatrixView down_view = matrix(down, "down", g.hidden, g.intermediate);
  const py::gil_scoped_release unlocked;
  experts.write(index, gate_view, up_view, down_view, team);
}

py::tuple read_expert(const PackedExperts& experts, int index) {
  const Geometry& g = experts.geometry();
  py::array_t<bf16> gate({g.intermediate, g.hidden}), up({g.intermediate, g.hidden}), down({g.hidden, g.intermediate});
  const auto hidden = static_cast<std::size_t>(g.hidden), intermediate = static_cast<std::size_t>(g.intermediate);
  experts.read(index, {gate.mutable_data(), hidden}, {up.mutable_data(), hidden}, {down.mutable_data(), intermediate});
  return py::make_tuple(gate, up, down);
}

// +v, +m, both (split by tokens per expert), or one ISA named outright. Nothing is chosen that was not asked for.
ForwardOptions options(bool avx512, bool amx, int amx_min_tokens, const std::optional<std::string>& isa, bool dynamic) {
  if (isa && (avx512 || amx)) throw py::value_error("isa names the kernels alone: leave avx512 and amx off");
  if (!isa && !avx512 && !amx) throw py::value_error("no kernels chosen: avx512, amx or isa");
  if (amx_min_tokens < 0)
    throw py::value_error("amx_min_tokens=" + std::to_string(amx_min_tokens) + " must not be negative");
  const Kernels* many = granted_isa(isa ? *isa : amx ? "amx" : "avx512").kernels;
  const Kernels* few = avx512 ? granted_isa("avx512").kernels : many;
  return {few, many, amx_min_tokens, dynamic};
}

struct Inputs {
  const bf16* hidden;
  Routing routing;
  bf16* out;
};

Inputs checked_inputs(const Geometry& g, const py::array& hidden, const py::array& ids, const py::array& gates,
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

void forward(MoE& moe, const py::array& hidden, const py::array& ids, const py::array& gates, py::array out,
             bool avx512, bool amx, int amx_min_tokens, const std::optional<std::string>& isa, bool dynamic) {
  const ForwardOptions chosen = options(avx512, amx, amx_min_tokens, isa, dynamic);
  const Inputs in = checked_inputs(moe.geometry(), hidden, ids, gates, out);
  const py::gil_scoped_release unlocked;
  moe.forward(in.hidden, in.routing, in.out, chosen);
}

py::dict counters(MoE& moe) {
  Counters c;
  {
    const py::gil_scoped_release unlocked;
    c = moe.counters();
  }
  using namespace py::literals;
  return py::dict("reference_calls"_a = c.reference_calls, "avx2_calls"_a = c.avx2_calls,
                  "avx512_calls"_a = c.avx512_calls, "amx_tiles"_a = c.amx_tiles,
                  "emulated_tiles"_a = c.emulated_tiles, "tasks_static"_a = c.tasks_static,
                  "tasks_dynamic"_a = c.tasks_dynamic, "tasks_stolen"_a = c.tasks_stolen,
                  "weight_bytes"_a = c.weight_bytes, "flops"_a = c.flops);
}

}  // namespace

void bind_moe(py::module_& module) {
  py::class_<PackedExperts, std::shared_ptr<PackedExperts>>(module, "PackedExperts")
      .def(py::init(&make_experts), py::arg("experts"), py::arg("hidden"), py::arg("intermediate"))
      .def("write_expert", write_expert, py::arg("index"), py::arg("gate").noconvert(), py::arg("up").noconvert(),
           py::arg("down").noconvert(), py::arg("team").none(true) = nullptr)
      .def("read_expert", read_expert, py::arg("index"))
      .def_property_readonly("experts", [](const PackedExperts& e) { return e.geometry().experts; })
      .def_property_readonly("hidden", [](const PackedExperts& e) { return e.geometry().hidden; })
      .def_property_readonly("intermediate", [](const PackedExperts& e) { return e.geometry().intermediate; })
      .def_property_readonly("nbytes", &PackedExperts::bytes);
  py::class_<MoE, std::shared_ptr<MoE>>(module, "MoE")
      .def(py::init<std::shared_ptr<PackedExperts>, std::shared_ptr<Team>>(), py::arg("weights"), py::arg("team"))
      .def("forward", forward, py::arg("hidden").noconvert(), py::arg("ids").noconvert(), py::arg("gates").noconvert(),
           py::arg("out").noconvert(), py::kw_only(), py::arg("avx512") = false, py::arg("amx") = false,
           py::arg("amx_min_tokens") = 5, py::arg("isa") = py::none(), py::arg("dynamic") = false)
      .def("counters", counters);
}

}  // namespace ktbench::binding
