#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include "binding/module.h"
#include "runtime/openmp.h"
#include "runtime/pool.h"

namespace py = pybind11;

namespace ktbench::binding {
namespace {

std::unique_ptr<ThreadPool> make_pool(std::vector<int> cpus, long spin_us, bool own) {
  if (spin_us < 0) throw py::value_error("spin_us=" + std::to_string(spin_us) + " must not be negative");
  return std::make_unique<ThreadPool>(std::move(cpus), std::chrono::microseconds(spin_us), own);
}

py::array_t<std::int64_t> spans(Team& team) {
  const std::vector<Span> spans = team.spans();
  py::array_t<std::int64_t> rows({static_cast<py::ssize_t>(spans.size()), py::ssize_t{3}});
  std::int64_t* to = rows.mutable_data();
  for (const Span& span : spans)
    for (const std::int64_t field : {span.tag, span.begin_ns, span.end_ns}) *to++ = field;
  return rows;
}

}  // namespace

void bind_teams(py::module_& module) {
  py::class_<Team, std::shared_ptr<Team>>(module, "Team")
      .def_property_readonly("threads", &Team::threads)
      .def_property_readonly("busy_ns", &Team::busy_ns)
      .def("spans", spans);
  py::class_<OpenMPTeam, Team, std::shared_ptr<OpenMPTeam>>(module, "OpenMPTeam")
      .def(py::init<int>(), py::arg("threads"))
      .def("pin", &OpenMPTeam::pin, py::arg("cpus"));
  py::class_<ThreadPool, Team, std::shared_ptr<ThreadPool>>(module, "ThreadPool")
      .def(py::init(&make_pool), py::arg("cpus"), py::arg("spin_us"), py::arg("own") = false)
      .def_property_readonly("cpus", &ThreadPool::cpus);
}

}  // namespace ktbench::binding
