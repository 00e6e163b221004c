// Small operations of a decode step, checked once and run repeatedly.
#include "binding/module.h"

#include <functional>
#include <utility>
#include <vector>

#include "binding/arrays.h"
#include "dense/select.h"
#include "dense/small.h"

namespace ktbench::binding {
namespace {

// The GIL is kept: releasing and reacquiring it would take longer than the work.
class SmallCall {
 public:
  SmallCall(std::function<void()> call, std::vector<py::array> arrays)
      : call_(std::move(call)), arrays_(std::move(arrays)) {}

  void forward() const { call_(); }

 private:
  std::function<void()> call_;
  std::vector<py::array> arrays_;  // kept alive for the call
};

std::vector<py::ssize_t> shape_of(const py::array& array) { return {array.shape(), array.shape() + array.ndim()}; }

template <class T>
const T* numbers(const py::array& array, const char* name, const std::vector<py::ssize_t>& shape) {
  check(array, {name, py::dtype::of<T>(), shape});
  check_contiguous(array, name);
  return static_cast<const T*>(array.data());
}

template <class T>
T* writable_numbers(py::array& array, const char* name, const std::vector<py::ssize_t>& shape) {
  numbers<T>(array, name, shape);
  check_writeable(array, name);
  return static_cast<T*>(array.mutable_data());
}

SmallCall bind_add(const py::array& a, const py::array& b, py::array& out) {
  const std::vector<py::ssize_t> shape = shape_of(a);
  const bf16* first = numbers<bf16>(a, "a", shape);
  const bf16* second = numbers<bf16>(b, "b", shape);
  bf16* to = writable_numbers<bf16>(out, "out", shape);
  return {[=, count = static_cast<std::size_t>(a.size())] { add(first, second, count, to); }, {a, b, out}};
}

SmallCall bind_take_rows(const py::array& table, const py::array& ids, py::array& out) {
  if (table.dtype().attr("hasobject").cast<bool>()) throw py::type_error("table must hold numbers, not objects");
  check(table, {"table", table.dtype(), {-1, -1}});
  check_contiguous(table, "table");
  RowsTaken call{};
  call.ids = numbers<std::int64_t>(ids, "ids", {-1});
  check(out, {"out", table.dtype(), {ids.shape(0), table.shape(1)}});
  check_contiguous(out, "out"), check_writeable(out, "out");
  call.table = static_cast<const std::byte*>(table.data()), call.rows = table.shape(0);
  call.row_bytes = static_cast<std::size_t>(table.shape(1) * table.itemsize());
  call.tokens = ids.shape(0), call.out = static_cast<std::byte*>(out.mutable_data());
  return {[call] { take_rows(call); }, {table, ids, out}};
}

void check_top_k(int top_k, int experts) {
  if (experts < 1 || experts > most_selectable)
    throw py::value_error("logits of " + std::to_string(experts) + " experts: allowed are 1 to " +
                          std::to_string(most_selectable));
  if (top_k < 1 || top_k > experts)
    throw py::value_error("top_k=" + std::to_string(top_k) + " is not in 1.." + std::to_string(experts));
}

SmallCall bind_select_experts(const py::array& logits, py::array& ids, py::array& weights, bool renormalised) {
  Selection call{};
  call.logits = numbers<bf16>(logits, "logits", {-1, -1});
  call.tokens = checked_count("tokens", logits.shape(0)), call.experts = checked_count("experts", logits.shape(1));
  call.ids = writable_numbers<std::int64_t>(ids, "ids", {call.tokens, -1});
  call.top_k = checked_count("top_k", ids.shape(1));
  check_top_k(call.top_k, call.experts);
  const std::vector<py::ssize_t> shape = shape_of(ids);
  if (weights.dtype().equal(py::dtype::of<bf16>()))
    call.rounded = writable_numbers<bf16>(weights, "weights", shape);
  else
    call.weights = writable_numbers<float>(weights, "weights", shape);
  call.renormalised = renormalised;
  return {[call] { select_experts(call); }, {logits, ids, weights}};
}

}  // namespace

void bind_small(py::module_& module) {
  py::class_<SmallCall>(module, "SmallCall")
      .def_static("add", bind_add, py::arg("a").noconvert(), py::arg("b").noconvert(), py::arg("out").noconvert())
      .def_static("take_rows", bind_take_rows, py::arg("table").noconvert(), py::arg("ids").noconvert(),
                  py::arg("out").noconvert())
      .def_static("select_experts", bind_select_experts, py::arg("logits").noconvert(), py::arg("ids").noconvert(),
                  py::arg("weights").noconvert(), py::kw_only(), py::arg("renormalised"))
      .def("forward", &SmallCall::forward);
}

}  // namespace ktbench::binding
