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

struct NamedFormat {
  const char* name;
  Format format;
};
constexpr NamedFormat formats[] = {{"bf16", {}},
                                   {"int8", {Precision::int8, 0}},
                                   {"int4_g32", {Precision::int4, 32}},
                                   {"int4_g64", {Precision::int4, 64}},
                                   {"int4_g128", {Precision::int4, 128}}};

Format format_named(const std::string& name) {
  std::string known;
  for (const NamedFormat& f : formats) {
    if (name == f.name) return f.format;
    known += (known.empty() ? "" : ", ") + std::string(f.name);
  }
  throw py::value_error("precision '" + name + "': allowed are " + known);
}

std::string name_of(const Format& format) {
  for (const NamedFormat& f : formats)
    if (f.format.precision == format.precision && f.format.group == format.group) return f.name;
  throw std::logic_error("a format without a name");
}

std::shared_ptr<PackedExperts> make_experts(int experts, int hidden, int intermediate, const std::string& precision,
                                            int domains, const std::optional<std::vector<int>>& nodes) {
  const Geometry geometry{experts, hidden, intermediate, format_named(precision)};
  return std::make_shared<PackedExperts>(geometry, domains, nodes.value_or(std::vector<int>{}));
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

// +v, +m, both (split by tokens per expert), or one ISA named outright. Nothing is chosen that was not asked for.
struct Chosen {
  bool avx512 = false;
  bool amx = false;
  int amx_min_tokens = 5;
  std::optional<std::string> isa;
  bool dynamic = false;
  bool numa = false;

  ForwardOptions options(Precision precision) const {
    if (isa && (avx512 || amx)) throw py::value_error("isa names the kernels alone: leave avx512 and amx off");
    if (!isa && !avx512 && !amx) throw py::value_error("no kernels chosen: avx512, amx or isa");
    if (amx_min_tokens < 0)
      throw py::value_error("amx_min_tokens=" + std::to_string(amx_min_tokens) + " must not be negative");
    const Kernels* many = isa   ? &kernels_of(*isa, precision)
                          : amx ? &kernels_of("amx", precision)
                                : &fastest_avx512(precision);
    const Kernels* few = avx512 ? &fastest_avx512(precision) : many;
    return {few, many, amx_min_tokens, dynamic, numa};
  }
};

ForwardInputs checked_inputs(const Geometry& g, const py::array& hidden, const py::array& ids, const py::array& gates,
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

// A call's operator, arrays and options: what a submission has to keep alive.
struct Request {
  std::shared_ptr<MoE> moe;
  py::array hidden, ids, gates, out;
  ForwardInputs inputs;
  ForwardOptions options;

  Request(std::shared_ptr<MoE> operation, py::array hidden_, py::array ids_, py::array gates_, py::array out_,
          const Chosen& chosen)
      : moe(std::move(operation)), hidden(std::move(hidden_)), ids(std::move(ids_)), gates(std::move(gates_)),
        out(std::move(out_)), inputs(checked_inputs(moe->experts().geometry(), hidden, ids, gates, out)),
        options(chosen.options(moe->experts().geometry().format.precision)) {}
};

// The arrays are let go with the interpreter's lock held, after the work without it.
class PyTicket {
 public:
  explicit PyTicket(Request request) : request_(std::move(request)) {
    const py::gil_scoped_release unlocked;
    ticket_.emplace(MoE::submit(request_.moe, request_.inputs, request_.options));
  }
  ~PyTicket() {
    const py::gil_scoped_release unlocked;
    ticket_.reset();
  }
  void wait() {
    const py::gil_scoped_release unlocked;
    ticket_->wait();
  }

 private:
  Request request_;
  std::optional<MoE::Ticket> ticket_;
};

// One call as a pair of C functions, for a host node of a CUDA graph or stream: submit(data), later wait(data), again and
// again on the same arrays. C has no exceptions: the first error is kept and raised by check().
class HostCall {
 public:
  explicit HostCall(Request request) : request_(std::move(request)) {}
  ~HostCall() {
    const py::gil_scoped_release unlocked;
    ticket_.reset();
  }

  static void submit(void* call) {
    static_cast<HostCall*>(call)->guarded([](HostCall& self) {
      self.ticket_.reset();
      self.ticket_.emplace(MoE::submit(self.request_.moe, self.request_.inputs, self.request_.options));
    });
  }
  static void wait(void* call) {
    static_cast<HostCall*>(call)->guarded([](HostCall& self) {
      if (!self.ticket_) throw std::logic_error("wait before submit");
      self.ticket_->wait();
    });
  }
  void check() {
    if (std::exception_ptr error = std::exchange(error_, nullptr)) std::rethrow_exception(error);
  }

 private:
  template <class Body>
  void guarded(Body body) try {
    body(*this);
  } catch (...) {
    if (!error_) error_ = std::current_exception();
  }

  Request request_;
  std::optional<MoE::Ticket> ticket_;
  std::exception_ptr error_;
};

template <class T>
std::uintptr_t address(T* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer);
}

// The arguments that forward, submit and host_call have in common.
template <class Result, class Body>
auto with_request(Body body) {
  return [body](std::shared_ptr<MoE> moe, py::array hidden, py::array ids, py::array gates, py::array out, bool avx512,
                bool amx, int amx_min_tokens, std::optional<std::string> isa, bool dynamic, bool numa) -> Result {
    return body(Request(std::move(moe), std::move(hidden), std::move(ids), std::move(gates), std::move(out),
                        {avx512, amx, amx_min_tokens, std::move(isa), dynamic, numa}));
  };
}

template <class Class, class Function>
void define_call(Class& type, const char* name, Function function) {
  type.def(name, function, py::arg("hidden").noconvert(), py::arg("ids").noconvert(), py::arg("gates").noconvert(),
           py::arg("out").noconvert(), py::kw_only(), py::arg("avx512") = false, py::arg("amx") = false,
           py::arg("amx_min_tokens") = 5, py::arg("isa") = py::none(), py::arg("dynamic") = false,
           py::arg("numa") = false);
}

void forward(const Request& request) {
  const py::gil_scoped_release unlocked;
  request.moe->forward(request.inputs, request.options);
}

py::dict counters(MoE& moe) {
  const Counters c = moe.counters();
  using namespace py::literals;
  return py::dict("reference_calls"_a = c.reference_calls, "avx2_calls"_a = c.avx2_calls,
                  "avx512_calls"_a = c.avx512_calls, "amx_tiles"_a = c.amx_tiles,
                  "emulated_tiles"_a = c.emulated_tiles, "tasks_static"_a = c.tasks_static,
                  "tasks_dynamic"_a = c.tasks_dynamic, "tasks_stolen"_a = c.tasks_stolen,
                  "weight_bytes"_a = c.weight_bytes, "flops"_a = c.flops,
                  "local_bytes"_a = c.local_bytes, "remote_bytes"_a = c.remote_bytes);
}

}  // namespace

void bind_moe(py::module_& module) {
  py::class_<PackedExperts, std::shared_ptr<PackedExperts>>(module, "PackedExperts")
      .def(py::init(&make_experts), py::arg("experts"), py::arg("hidden"), py::arg("intermediate"),
           py::arg("precision") = "bf16", py::arg("domains") = 1, py::arg("nodes") = py::none())
      .def_static("map", [](const std::string& path) { return std::make_shared<PackedExperts>(PackedExperts::map(path)); },
                  py::arg("path"))
      .def("save", &PackedExperts::save, py::arg("path"), py::call_guard<py::gil_scoped_release>())
      .def("write_expert", write_expert, py::arg("index"), py::arg("gate").noconvert(), py::arg("up").noconvert(),
           py::arg("down").noconvert(), py::arg("team").none(true) = nullptr)
      .def("read_expert", read_expert, py::arg("index"), py::arg("team").none(true) = nullptr)
      .def("placement", &PackedExperts::placement)
      .def_property_readonly("experts", [](const PackedExperts& e) { return e.geometry().experts; })
      .def_property_readonly("hidden", [](const PackedExperts& e) { return e.geometry().hidden; })
      .def_property_readonly("intermediate", [](const PackedExperts& e) { return e.geometry().intermediate; })
      .def_property_readonly("precision", [](const PackedExperts& e) { return name_of(e.geometry().format); })
      .def_property_readonly("domains", [](const PackedExperts& e) { return e.shards().size(); })
      .def_property_readonly("nbytes", &PackedExperts::bytes);
  py::class_<PyTicket>(module, "Ticket").def("wait", &PyTicket::wait);
  py::class_<HostCall>(module, "HostCall")
      .def_property_readonly("submit", [](const HostCall&) { return address(&HostCall::submit); })
      .def_property_readonly("wait", [](const HostCall&) { return address(&HostCall::wait); })
      .def_property_readonly("data", [](HostCall& call) { return address(&call); })
      .def("check", &HostCall::check);
  auto moe = py::class_<MoE, std::shared_ptr<MoE>>(module, "MoE")
                 .def(py::init<std::shared_ptr<PackedExperts>, std::shared_ptr<Team>>(), py::arg("weights"),
                      py::arg("team"))
                 .def("counters", counters);
  define_call(moe, "forward", with_request<void>(forward));
  define_call(moe, "submit", with_request<std::unique_ptr<PyTicket>>(
                                 [](Request r) { return std::make_unique<PyTicket>(std::move(r)); }));
  define_call(moe, "host_call", with_request<std::unique_ptr<HostCall>>(
                                    [](Request r) { return std::make_unique<HostCall>(std::move(r)); }));
}

}  // namespace ktbench::binding
