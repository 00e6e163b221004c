// Grouped products with packed experts and their transposes, for training.
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <pybind11/stl.h>

#include "binding/arrays.h"
#include "binding/module.h"
#include "binding/request.h"
#include "runtime/isa.h"
#include "training/products.h"

namespace ktbench::binding {
namespace {

Matrices matrices_named(const std::string& name) {
  if (name == "gate_up") return Matrices::gate_up;
  if (name == "down") return Matrices::down;
  throw py::value_error("matrices '" + name + "': allowed are gate_up, down");
}

// Rows of `type` to multiply, their assignment to slots and experts, and the products.
struct Arrays {
  int rows;
  std::vector<int> row, first;  // copies: another thread may write to the arrays between the check and the use
  float* out;

  Slots slots() const { return {row.data(), first.data(), static_cast<int>(row.size())}; }
};

std::vector<int> integers(const py::array& array, const char* name, py::ssize_t count) {
  check(array, {name, py::dtype::of<std::int32_t>(), {count}});
  check_contiguous(array, name);
  const auto* data = static_cast<const std::int32_t*>(array.data());
  return {data, data + checked_count(name, array.size())};
}

void check_slots(const Slots& slots, int rows, int experts) {
  for (int e = 0; e < experts; ++e)
    if (slots.first[e] > slots.first[e + 1]) throw py::value_error("first must not decrease");
  if (slots.first[0] != 0 || slots.first[experts] != slots.count)
    throw py::value_error("first must begin with 0 and end with " + std::to_string(slots.count) + ", the slots of row");
  for (int s = 0; s < slots.count; ++s)
    if (slots.row[s] < 0 || slots.row[s] >= rows)
      throw py::index_error("row " + std::to_string(slots.row[s]) + " is not in 0.." + std::to_string(rows - 1));
}

Arrays checked(const Geometry& g, const py::array& rows, const py::dtype& type, int width, const py::array& row,
               const py::array& first, py::array& out, int parts, int columns) {
  check(rows, {"rows", type, {-1, width}});
  Arrays arrays{checked_count("rows", rows.shape(0)), integers(row, "row", -1),
                integers(first, "first", py::ssize_t{1} + g.experts), nullptr};
  check(out, {"out", py::dtype::of<float>(), {parts, row.shape(0), columns}});
  check_writeable(out, "out");
  check_contiguous(rows, "rows"), check_contiguous(out, "out");
  check_slots(arrays.slots(), arrays.rows, g.experts);
  arrays.out = static_cast<float*>(out.mutable_data());
  return arrays;
}

void forward(ExpertProducts& products, const std::string& name, const py::array& rows, const py::array& row,
             const py::array& first, py::array& out, const KernelChoice& chosen) {
  const Matrices which = matrices_named(name);
  const Geometry& g = products.experts().geometry();
  const Arrays arrays = checked(g, rows, py::dtype::of<bf16>(), products.inputs(which), row, first, out,
                                products.forward_parts(which), products.outputs(which));
  const ForwardOptions options = chosen.options(g);
  const auto* x = static_cast<const bf16*>(rows.data());
  const py::gil_scoped_release unlocked;
  products.forward(which, x, arrays.rows, arrays.slots(), arrays.out, options);
}

void transposed(ExpertProducts& products, const std::string& name, const py::array& rows, const py::array& row,
                const py::array& first, py::array& out, const KernelChoice& chosen) {
  const Matrices which = matrices_named(name);
  const Geometry& g = products.experts().geometry();
  const Arrays arrays = checked(g, rows, py::dtype::of<float>(), products.outputs(which), row, first, out,
                                products.transposed_parts(which), products.inputs(which));
    chosen.options(g);  // throws if it is invalid
  const Isa& isa = transposing_isa(chosen.isa ? *chosen.isa : chosen.amx ? "amx" : chosen.avx512 ? "avx512" : "avx2");
  const TransposedOptions options{isa.transposed, isa.counter, chosen.dynamic, chosen.numa};
  const auto* y = static_cast<const float*>(rows.data());
  const py::gil_scoped_release unlocked;
  products.transposed(which, y, arrays.slots(), arrays.out, options);
}

template <class Class, class Body>
void define_product(Class& type, const char* name, Body body) {
  const auto function = [body](ExpertProducts& products, const std::string& matrices, const py::array& rows,
                               const py::array& row, const py::array& first, py::array out, bool avx2, bool avx512,
                               bool amx, std::optional<int> amx_min_tokens, std::optional<std::string> isa, bool dynamic,
                               bool numa) {
    body(products, matrices, rows, row, first, out, {avx2, avx512, amx, amx_min_tokens, std::move(isa), dynamic, numa});
  };
  type.def(name, function, py::arg("matrices"), py::arg("rows").noconvert(), py::arg("row").noconvert(),
           py::arg("first").noconvert(), py::arg("out").noconvert(), py::kw_only(), py::arg("avx2") = false,
           py::arg("avx512") = false, py::arg("amx") = false, py::arg("amx_min_tokens") = py::none(),
           py::arg("isa") = py::none(), py::arg("dynamic") = false, py::arg("numa") = false);
}

}  // namespace

void bind_training(py::module_& module) {
  auto products = py::class_<ExpertProducts>(module, "ExpertProducts")
                      .def(py::init<std::shared_ptr<PackedExperts>, std::shared_ptr<Team>, int>(),
                           py::arg("weights").none(false), py::arg("team").none(false), py::arg("tag") = 0)
                      .def("counters", [](ExpertProducts& of) { return numbers_of(of.counters()); });
  define_product(products, "forward", forward);
  define_product(products, "transposed", transposed);
}

}  // namespace ktbench::binding
