#include "binding/module.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <system_error>

#include "core/build_id.h"
#include "core/format_names.h"
#include "roofs/roofs.h"
#include "runtime/guard.h"
#include "runtime/isa.h"
#include "runtime/openmp.h"
#include "runtime/pool.h"

namespace py = pybind11;

namespace ktbench::binding {
namespace {

using namespace py::literals;

py::dict grants() {
  py::dict reasons;
  for (const Isa& isa : isas()) reasons[py::str(isa.name)] = isa.missing;
  return reasons;
}

const char* name_of(Scales scales) {
  switch (scales) {
    case Scales::none: return "none";
    case Scales::row: return "row";
    case Scales::group: return "group";
    case Scales::block: return "block";
    case Scales::block_bf16: return "block_bf16";
    case Scales::power: return "power";
    case Scales::tile: return "tile";
    case Scales::super: return "super";
  }
  return "";
}

// The activation formats of all built instruction sets with kernels for a row of the format table, granted or not.
py::dict kernels_for(int row) {
  py::dict kinds;
  for (const Isa& isa : isas()) {
    if (!isa.kernels) continue;
    const Kernels& kernels = isa.kernels->of_row[row];
    const bool floats = kernels.activation == Activation::bf16 || kernels.activation == Activation::f32;
    if (kernels.gate_up) kinds[isa.name] = floats ? "bf16" : "int8";
  }
  return kinds;
}

py::dict formats() {
  py::dict all;
  for (int row = 0; row < format_count; ++row) {
    const Format& f = format_table[row].format;
    const int row_bytes = f.head_bytes() / strip_rows;
    all[format_table[row].name] =
        py::dict("bits"_a = f.bits(), "scales"_a = name_of(f.scales), "group"_a = f.group,
                 "scale_bytes"_a = f.scale_bytes(), "row_bytes"_a = row_bytes, "block_bytes"_a = f.block_bytes(),
                 "whole_blocks"_a = f.has_whole_blocks(), "from_numbers"_a = !is_lattice(f.numbers),
                 "depth_multiple"_a = f.depth_multiple(), "isas"_a = kernels_for(row));
  }
  return all;
}

const char* name_of(std::uint64_t Counters::*counter) {
  for (const CounterTraits& traits : counter_table)
    if (traits.value == counter) return traits.name;
  throw std::logic_error("a counter that counter_table does not list");
}

py::dict isa_traits() {
  py::dict all;
  for (const Isa& isa : isas()) {
    py::list peaks;
    if (isa.burn_bf16) peaks.append("bf16");
    if (isa.burn_int8) peaks.append("int8");
    all[isa.name] = py::dict("feature"_a = isa.feature, "parent"_a = isa.parent, "counter"_a = name_of(isa.counter),
                             "peaks"_a = peaks);
  }
  return all;
}

// By granted instruction set and precision.
py::dict crossovers() {
  py::dict all;
  for (const Isa& isa : isas())
    for (const FormatTraits& traits : format_table)
      if (isa.feature && has_kernels(isa.name, traits.format)) {
        const Crossover& of = kernels_of(isa.name, traits.format).crossover;
        all[py::make_tuple(isa.name, traits.name)] = py::make_tuple(of.fetch_from, of.block_from);
      }
  return all;
}

void put_crossover(const std::string& isa, const std::string& precision, int fetch_from, int block_from) {
  if (fetch_from < 1 || block_from < 1)
    throw py::value_error("fetch_from=" + std::to_string(fetch_from) + ", block_from=" + std::to_string(block_from) +
                          ": both must be at least 1");
  set_crossover(isa, format_named(precision), {fetch_from, block_from});
}

const char* isa_of(const std::string& feature, const std::string& precision) {
  return fastest_isa(feature, format_named(precision)).name;
}

// System errors become an OSError, with errno.
void translate(std::exception_ptr error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::system_error& refused) {
    const py::object as_python = py::reinterpret_borrow<py::object>(PyExc_OSError)(refused.code().value(), refused.what());
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(as_python.ptr())), as_python.ptr());
  }
}

std::unique_ptr<ThreadPool> make_pool(std::vector<int> cpus, long spin_us, bool own) {
  constexpr long longest_us = 1'000'000'000;
  if (spin_us < 0) throw py::value_error("spin_us=" + std::to_string(spin_us) + " must not be negative");
  if (spin_us > longest_us)
    throw py::value_error("spin_us=" + std::to_string(spin_us) + " must be at most " + std::to_string(longest_us));
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

void bind_teams(py::module_& module) {
  py::class_<Team, std::shared_ptr<Team>>(module, "Team")
      .def_property_readonly("threads", &Team::threads)
      .def_property_readonly("busy_ns", &Team::busy_ns)
      .def("spans", spans);
  py::class_<OpenMPTeam, Team, std::shared_ptr<OpenMPTeam>>(module, "OpenMPTeam")
      .def(py::init<int>(), py::arg("threads"));
  py::class_<ThreadPool, Team, std::shared_ptr<ThreadPool>>(module, "ThreadPool")
      .def(py::init(&make_pool), py::arg("cpus"), py::arg("spin_us"), py::arg("own") = false)
      .def_property_readonly("cpus", &ThreadPool::cpus);
}

void bind_roofs(py::module_& module) {
  const auto unlocked = py::call_guard<py::gil_scoped_release>();
  py::class_<ReadRoof>(module, "ReadRoof")
      .def(py::init<std::shared_ptr<Team>, std::size_t>(), py::arg("team").none(false), py::arg("nbytes"), unlocked)
      .def("sample", &ReadRoof::sample, py::arg("seconds"), unlocked)
      .def("read_once", &ReadRoof::read_once, unlocked);
  module.def("peak_flops", &peak_flops, py::arg("team"), py::arg("isa"), py::arg("seconds"), py::kw_only(),
             py::arg("dtype") = "bf16", unlocked);
  module.def("ping_pong_ns", &ping_pong_ns, py::arg("team"), unlocked);
}

}  // namespace

PYBIND11_MODULE(_kernels, module) {
  module.doc() = "Fused MoE kernels for the CPU, and the roofs they run against.";
  py::register_exception_translator(translate);
  module.def("build_id", build_id);
  module.def("formats", formats);
  module.def("isas", isa_traits);
  module.def("grants", grants);
  module.def("isa_of", isa_of, "feature"_a, "precision"_a);
  module.def("crossovers", crossovers);
  module.def("set_crossover", put_crossover, "isa"_a, "precision"_a, "fetch_from"_a, "block_from"_a);
  module.def("guard_pages", &guard_pages, "address"_a, "nbytes"_a);
  bind_teams(module);
  bind_moe(module);
  bind_calls(module);
  bind_linear(module);
  bind_dense(module);
  bind_small(module);
  bind_training(module);
  bind_roofs(module);
}

}  // namespace ktbench::binding
