#include "roofs/roofs.h"

#include "binding/module.h"

namespace py = pybind11;

namespace ktbench::binding {

void bind_roofs(py::module_& module) {
  const auto unlocked = py::call_guard<py::gil_scoped_release>();
  py::class_<ReadRoof>(module, "ReadRoof")
      .def(py::init<std::shared_ptr<Team>, std::size_t>(), py::arg("team"), py::arg("nbytes"), unlocked)
      .def("sample", &ReadRoof::sample, py::arg("nbytes"), unlocked);
  module.def("peak_flops", &peak_flops, py::arg("team"), py::arg("isa"), py::arg("seconds"), py::kw_only(),
             py::arg("dtype") = "bf16", unlocked);
  module.def("ping_pong_ns", &ping_pong_ns, py::arg("team"), unlocked);
}

}  // namespace ktbench::binding
