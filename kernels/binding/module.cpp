#include "binding/module.h"

#include <pybind11/stl.h>

#include <system_error>

#include "core/build_id.h"
#include "runtime/isa.h"

namespace py = pybind11;

namespace ktbench::binding {
namespace {

py::dict grants() {
  py::dict reasons;
  for (const Isa& isa : isas()) reasons[py::str(isa.name)] = isa.missing;
  return reasons;
}

// What the system refuses is an OSError, with its number.
void translate(std::exception_ptr error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::system_error& refused) {
    const py::object as_python = py::reinterpret_borrow<py::object>(PyExc_OSError)(refused.code().value(), refused.what());
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(as_python.ptr())), as_python.ptr());
  }
}

}  // namespace

PYBIND11_MODULE(_kernels, module) {
  module.doc() = "Fused MoE kernels for the CPU, and the roofs they run against.";
  py::register_exception_translator(translate);
  module.def("build_id", build_id);
  module.def("grants", grants);
  bind_teams(module);
  bind_moe(module);
  bind_calls(module);
  bind_linear(module);
  bind_dense(module);
  bind_roofs(module);
}

}  // namespace ktbench::binding
