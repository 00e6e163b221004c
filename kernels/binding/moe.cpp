#include "binding/arrays.h"
#include "binding/module.h"
#include "core/format_names.h"
#include "moe/expert_file.h"

#include <pybind11/stl.h>

#include <map>
#include <optional>
#include <string>

namespace ktbench::binding {
namespace {

using OptionalArray = std::optional<py::array>;

constexpr const char* act_names[acts] = {"silu", "gelu_tanh"};

Act act_named(const std::string& name) {
  for (int act = 0; act < acts; ++act)
    if (name == act_names[act]) return static_cast<Act>(act);
  throw py::value_error("activation '" + name + "': allowed are " + act_names[0] + ", " + act_names[1]);
}

const char* activation_of(const PackedExperts& experts) { return act_names[static_cast<int>(experts.glu().act)]; }

std::shared_ptr<PackedExperts> make_experts(int experts, int hidden, int intermediate, const std::string& precision,
                                            int domains, const std::optional<std::vector<int>>& nodes,
                                            const std::string& activation, double alpha, std::optional<double> limit,
                                            double offset, bool biases,
                                            const std::optional<std::string>& down_precision) {
  const Geometry geometry{experts, hidden, intermediate, format_named(precision), biases,
                          down_precision ? std::optional(format_named(*down_precision)) : std::nullopt};
  const Glu glu{act_named(activation), alpha, limit.value_or(Glu{}.limit), offset};
  return std::make_shared<PackedExperts>(geometry, domains, nodes.value_or(std::vector<int>{}), glu);
}

std::optional<double> limit_of(const PackedExperts& experts) {
  const double limit = experts.glu().limit;
  return limit == Glu{}.limit ? std::nullopt : std::optional(limit);
}

// Null if it is not given.
const float* bias(const OptionalArray& array, const char* name, int size) {
  if (!array) return nullptr;
  check(*array, {name, py::dtype::of<float>(), {size}});
  check_contiguous(*array, name);
  return static_cast<const float*>(array->data());
}

BiasView biases_of(const Geometry& g, const OptionalArray& gate, const OptionalArray& up, const OptionalArray& down) {
  return {bias(gate, "gate_bias", g.intermediate), bias(up, "up_bias", g.intermediate),
          bias(down, "down_bias", g.hidden)};
}

// Makes views of gate, up and down, and writes them.
template <class MakeView>
void write_views(PackedExperts& experts, int index, const py::array& gate, const py::array& up, const py::array& down,
                 Team* team, const BiasView& biases, MakeView view) {
  const Geometry& g = experts.geometry();
  const AnyView gate_view = view(gate, "gate", g.intermediate, g.hidden, g.format);
  const AnyView up_view = view(up, "up", g.intermediate, g.hidden, g.format);
  const AnyView down_view = view(down, "down", g.hidden, g.intermediate, g.down_format());
  const py::gil_scoped_release unlocked;
  experts.write(index, gate_view, up_view, down_view, team, biases);
}

void write_expert(PackedExperts& experts, int index, const py::array& gate, const py::array& up, const py::array& down,
                  Team* team, const OptionalArray& gate_bias, const OptionalArray& up_bias,
                  const OptionalArray& down_bias) {
  const BiasView biases = biases_of(experts.geometry(), gate_bias, up_bias, down_bias);
  write_views(experts, index, gate, up, down, team, biases,
              [](const py::array& array, const char* name, int rows, int columns, const Format&) {
                return matrix(array, name, rows, columns);
              });
}

void write_expert_blocks(PackedExperts& experts, int index, const py::array& gate, const py::array& up,
                         const py::array& down, Team* team, const OptionalArray& gate_bias,
                         const OptionalArray& up_bias, const OptionalArray& down_bias) {
  const Geometry& g = experts.geometry();
  const BiasView biases = biases_of(g, gate_bias, up_bias, down_bias);
  const auto view = [](const py::array& array, const char* name, int rows, int columns, const Format& format) {
    const bool numbers = !format.has_blocks() && array.dtype().equal(py::dtype::of<bf16>());
    return numbers ? AnyView(matrix(array, name, rows, columns)) : AnyView(blocks(array, name, rows, columns, format));
  };
  write_views(experts, index, gate, up, down, team, biases, view);
}

// A method that writes an expert's three matrices, and its biases if it has any.
template <class Class, class Write>
void define_write(Class& type, const char* name, Write write) {
  type.def(name, write, py::arg("index"), py::arg("gate").noconvert(), py::arg("up").noconvert(),
           py::arg("down").noconvert(), py::arg("team").none(true) = nullptr, py::kw_only(),
           py::arg("gate_bias").noconvert() = py::none(), py::arg("up_bias").noconvert() = py::none(),
           py::arg("down_bias").noconvert() = py::none());
}

py::tuple read_expert(const PackedExperts& experts, int index, Team* team) {
  const Geometry& g = experts.geometry();
  py::array_t<float> gate({g.intermediate, g.hidden}), up({g.intermediate, g.hidden}), down({g.hidden, g.intermediate});
  const auto hidden = static_cast<std::size_t>(g.hidden), intermediate = static_cast<std::size_t>(g.intermediate);
  const MatrixOut to[] = {{gate.mutable_data(), hidden}, {up.mutable_data(), hidden}, {down.mutable_data(), intermediate}};
  {
    const py::gil_scoped_release unlocked;
    experts.read(index, to[0], to[1], to[2], team);
  }
  return py::make_tuple(gate, up, down);
}

py::array_t<float> multiply_expert(const PackedExperts& experts, int index, const std::string& name,
                                   const py::array& inputs, Team* team) {
  const std::map<std::string, ExpertMatrix> names = {
      {"gate", ExpertMatrix::gate}, {"up", ExpertMatrix::up}, {"down", ExpertMatrix::down}};
  const auto which = names.find(name);
  if (which == names.end()) throw py::value_error("no matrix '" + name + "': one of gate, up, down");
  const Geometry& g = experts.geometry();
  const bool down = which->second == ExpertMatrix::down;
  check(inputs, {"inputs", py::dtype::of<float>(), {-1, down ? g.intermediate : g.hidden}});
  check_contiguous(inputs, "inputs");
  const int tokens = checked_count("inputs", inputs.shape(0));
  py::array_t<float> outputs({tokens, down ? g.hidden : g.intermediate});
  float* const to = outputs.mutable_data();
  const auto* const from = static_cast<const float*>(inputs.data());
  {
    const py::gil_scoped_release unlocked;
    experts.multiply(index, which->second, from, tokens, to, team);
  }
  return outputs;
}

// Read-only; keeps its owner alive.
py::array memory_of(const py::object& self) {
  const auto& experts = self.cast<const PackedExperts&>();
  if (experts.shards().size() > 1) throw py::value_error("experts that are split over domains lie in several places");
  const Shard& shard = experts.shards().front();
  const auto bytes = static_cast<py::ssize_t>(shard.geometry.expert_bytes());
  py::array_t<std::uint8_t> view({static_cast<py::ssize_t>(shard.geometry.experts), bytes},
                                 reinterpret_cast<const std::uint8_t*>(shard.data), self);
  view.attr("flags").attr("writeable") = false;
  return view;
}

py::tuple read_biases(const PackedExperts& experts, int index) {
  const Geometry& g = experts.geometry();
  py::array_t<float> gate(g.intermediate), up(g.intermediate), down(g.hidden);
  experts.read_biases(index, {gate.mutable_data(), up.mutable_data(), down.mutable_data()});
  return py::make_tuple(gate, up, down);
}

}  // namespace

void bind_moe(py::module_& module) {
  py::class_<PackedExperts, std::shared_ptr<PackedExperts>> packed(module, "PackedExperts");
  packed.attr("file_version") = file_version;
  define_write(packed, "write_expert", write_expert);
  define_write(packed, "write_expert_blocks", write_expert_blocks);
  packed
      .def(py::init(&make_experts), py::arg("experts"), py::arg("hidden"), py::arg("intermediate"),
           py::arg("precision") = "bf16", py::arg("domains") = 1, py::arg("nodes") = py::none(), py::kw_only(),
           py::arg("activation") = "silu", py::arg("alpha") = 1.0, py::arg("limit") = py::none(),
           py::arg("offset") = 0.0, py::arg("biases") = false, py::arg("down_precision") = py::none())
      .def_static("map", [](const std::string& path) { return std::make_shared<PackedExperts>(PackedExperts::map(path)); },
                  py::arg("path"))
      .def("save", &PackedExperts::save, py::arg("path"), py::call_guard<py::gil_scoped_release>())
      .def("read_expert", read_expert, py::arg("index"), py::arg("team").none(true) = nullptr)
      .def("multiply_expert", multiply_expert, py::arg("index"), py::arg("matrix"), py::arg("inputs").noconvert(),
           py::arg("team").none(true) = nullptr)
      .def("read_biases", read_biases, py::arg("index"))
      .def("memory", memory_of)
      .def("copy_expert", &PackedExperts::copy, py::arg("index"), py::arg("source"), py::arg("source_index"),
           py::arg("team").none(true) = nullptr, py::call_guard<py::gil_scoped_release>())
      .def("placement", &PackedExperts::placement)
      .def_property_readonly("experts", [](const PackedExperts& e) { return e.geometry().experts; })
      .def_property_readonly("hidden", [](const PackedExperts& e) { return e.geometry().hidden; })
      .def_property_readonly("intermediate", [](const PackedExperts& e) { return e.geometry().intermediate; })
      .def_property_readonly("precision", [](const PackedExperts& e) { return traits_of(e.geometry().format).name; })
      .def_property_readonly("down_precision",
                             [](const PackedExperts& e) { return traits_of(e.geometry().down_format()).name; })
      .def_property_readonly("domains", [](const PackedExperts& e) { return e.shards().size(); })
      .def_property_readonly("activation", activation_of)
      .def_property_readonly("alpha", [](const PackedExperts& e) { return e.glu().alpha; })
      .def_property_readonly("limit", limit_of)
      .def_property_readonly("offset", [](const PackedExperts& e) { return e.glu().offset; })
      .def_property_readonly("biases", [](const PackedExperts& e) { return e.geometry().biases; })
      .def_property_readonly("nbytes", &PackedExperts::bytes);
}

}  // namespace ktbench::binding
