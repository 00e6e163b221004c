#include "binding/module.h"

#include <pybind11/stl.h>

#include <system_error>

#include "core/build_id.h"
#include "runtime/isa.h"
#include "runtime/openmp.h"
#include "runtime/pool.h"

namespace py = pybind11;

namespace ktbench::binding {
namespace {

py::dict grants() {
  py::dict reasons;
  for (const Isa& isa : isas()) reasons[py::str(isa.name)] = isa.missing;
  return reasons;
}

std::unique_ptr<ThreadPool> make_pool(std::vector<int> cpus, long spin_us, bool own) {
  if (spin_us < 0) throw py::value_error("spin_us=" + std::to_string(spin_us) + " must not be negative");
  return std::make_unique<ThreadPool>(std::move(cpus), std::chrono::microseconds(spin_us), own);
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
  py::class_<Team, std::shared_ptr<Team>>(module, "Team").def_property_readonly("threads", &Team::threads);
  py::class_<OpenMPTeam, Team, std::shared_ptr<OpenMPTeam>>(module, "OpenMPTeam")
      .def(py::init<int>(), py::arg("threads"))
      .def("pin", &OpenMPTeam::pin, py::arg("cpus"));
  py::class_<ThreadPool, Team, std::shared_ptr<ThreadPool>>(module, "ThreadPool")
      .def(py::init(&make_pool), py::arg("cpus"), py::arg("spin_us"), py::arg("own") = false)
      .def_property_readonly("cpus", &ThreadPool::cpus);
  bind_moe(module);
  bind_roofs(module);
}

}  // namespace ktbench::binding
