#include "linear/linear.h"
#include "linear/matrix_file.h"

#include "binding/arrays.h"
#include "binding/module.h"
#include "core/format_names.h"
#include "runtime/isa.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <optional>
#include <span>

namespace ktbench::binding {
namespace {

void write(PackedMatrix& matrix_, const py::array& weight, int first_row, Team* team) {
  const MatrixView view = matrix(weight, "weight", -1, matrix_.columns());
  const int count = checked_count("rows of weight", weight.shape(0));
  const py::gil_scoped_release unlocked;
  matrix_.write(view, first_row, count, team);
}

void write_blocks(PackedMatrix& matrix_, const py::array& weight, int first_row, Team* team) {
  const BlockView view = blocks(weight, "blocks", -1, matrix_.columns(), matrix_.format());
  const int count = checked_count("rows of blocks", weight.shape(0));
  const py::gil_scoped_release unlocked;
  matrix_.write(view, first_row, count, team);
}

py::array_t<float> read(const PackedMatrix& matrix_, Team* team) {
  py::array_t<float> weight({matrix_.rows(), matrix_.columns()});
  const MatrixOut to{weight.mutable_data(), static_cast<std::size_t>(matrix_.columns())};
  const py::gil_scoped_release unlocked;
  matrix_.read(to, team);
  return weight;
}

std::unique_ptr<Linear> make_linear(std::shared_ptr<PackedMatrix> weights, std::shared_ptr<Team> team,
                                    const std::optional<py::array>& bias) {
  std::vector<float> numbers;
  if (bias) {
    check(*bias, {"bias", py::dtype::of<float>(), {weights->rows()}});
    check_contiguous(*bias, "bias");
    const auto* data = static_cast<const float*>(bias->data());
    numbers.assign(data, data + weights->rows());
  }
  return std::make_unique<Linear>(std::move(weights), std::move(team), numbers);
}

// Whether the later begin is before the earlier end. Without branches: the order of the arrays differs between
// processes, but the instructions of a call must not (tests/instructions).
bool overlap(std::span<const bf16> a, std::span<const bf16> b) {
  return std::max(a.data(), b.data()) < std::min(a.data() + a.size(), b.data() + b.size());
}

void forward(Linear& linear, const py::array& x, py::array& out, const std::optional<std::string>& isa) {
  const PackedMatrix& weights = linear.weights();
  check(x, {"x", py::dtype::of<bf16>(), {-1, weights.columns()}});
  const int tokens = checked_count("tokens", x.shape(0));
  check(out, {"out", py::dtype::of<bf16>(), {tokens, weights.rows()}});
  check_writeable(out, "out");
  check_contiguous(x, "x"), check_contiguous(out, "out");
  const auto* from = static_cast<const bf16*>(x.data());
  auto* to = static_cast<bf16*>(out.mutable_data());
  if (overlap({from, 1ul * tokens * weights.columns()}, {to, 1ul * tokens * weights.rows()}))
    throw py::value_error("out must not share memory with x");
  const Kernels& kernels = isa ? kernels_of(*isa, weights.format()) : fastest_kernels(weights.format(), tokens);
  const py::gil_scoped_release unlocked;
  linear.forward(from, tokens, to, kernels);
}

py::dict counters(Linear& linear) {
  const LinearCounters counted = linear.counters();
  py::dict numbers;
  numbers["linear_calls"] = counted.calls;
  for (const CounterTraits& counter : counter_table)
    if (!counter.of_tasks) numbers[counter.name] = counted.kernels.*counter.value;
  return numbers;
}

}  // namespace

void bind_linear(py::module_& module) {
  py::class_<PackedMatrix, std::shared_ptr<PackedMatrix>> packed(module, "PackedMatrix");
  packed.attr("file_version") = matrix_file::version;
  packed
      .def(py::init([](int rows, int columns, const std::string& precision) {
             return std::make_shared<PackedMatrix>(rows, columns, format_named(precision));
           }),
           py::arg("rows"), py::arg("columns"), py::arg("precision") = "bf16")
      .def_static("map", [](const std::string& path) { return std::make_shared<PackedMatrix>(PackedMatrix::map(path)); },
                  py::arg("path"))
      .def("save", &PackedMatrix::save, py::arg("path"), py::call_guard<py::gil_scoped_release>())
      .def("write", write, py::arg("weight").noconvert(), py::arg("first_row") = 0,
           py::arg("team").none(true) = nullptr)
      .def("write_blocks", write_blocks, py::arg("blocks").noconvert(), py::arg("first_row") = 0,
           py::arg("team").none(true) = nullptr)
      .def("read", read, py::arg("team").none(true) = nullptr)
      .def_property_readonly("rows", &PackedMatrix::rows)
      .def_property_readonly("columns", &PackedMatrix::columns)
      .def_property_readonly("precision", [](const PackedMatrix& m) { return traits_of(m.format()).name; })
      .def_property_readonly("nbytes", &PackedMatrix::bytes);
  py::class_<Linear>(module, "Linear")
      .def(py::init(&make_linear), py::arg("weights").none(false), py::arg("team").none(false),
           py::arg("bias").noconvert() = py::none())
      .def("forward", forward, py::arg("x").noconvert(), py::arg("out").noconvert(), py::kw_only(),
           py::arg("isa") = py::none())
      .def("counters", counters);
}

}  // namespace ktbench::binding
