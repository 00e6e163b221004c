// The fused operator's calls: forward, tickets, prepared calls, and the same as C functions.
#include <exception>
#include <optional>
#include <utility>

#include <pybind11/stl.h>

#include "binding/module.h"
#include "binding/request.h"
#include "moe/prepared.h"

namespace ktbench::binding {
namespace {

// The interpreter's lock is let go only for what takes time: it may cost a time slice to have it back.
class GilRelease {
 public:
  explicit GilRelease(bool at_once) {
    if (!at_once) released_.emplace();
  }

 private:
  std::optional<py::gil_scoped_release> released_;
};

// A prepared call and its arrays, which are let go with the interpreter's lock held, after the work without it.
class BoundCall {
 public:
  explicit BoundCall(Request request)
      : request_(std::move(request)), call_(std::in_place, request_.moe, request_.inputs, request_.options) {}
  ~BoundCall() {
    const GilRelease unlocked(done());
    call_.reset();
  }

  Prepared& on_any_thread() { return *call_; }
  void submit() { call_->submit(); }  // never waits
  bool done() const { return call_->done(); }
  void wait() {
    const GilRelease unlocked(done());
    call_->wait();
  }
  void forward() {
    submit();
    wait();
  }

 private:
  Request request_;
  std::optional<Prepared> call_;
};

class Ticket {
 public:
  explicit Ticket(Request request) : call_(std::move(request)) { call_.submit(); }
  void wait() { call_.wait(); }
  bool done() const { return call_.done(); }

 private:
  BoundCall call_;
};

// One call as a pair of C functions, for a host node of a CUDA graph or stream: submit(data), later wait(data), again
// and again on the same arrays. C has no exceptions: the first error is kept and raised by check().
class HostCall {
 public:
  explicit HostCall(Request request) : call_(std::move(request)) {}

  static void submit(void* call) {
    HostCall& self = *static_cast<HostCall*>(call);
    self.submitted_ = false;
    self.guarded([](Prepared& prepared) { prepared.wait(); });
    self.submitted_ = self.guarded([](Prepared& prepared) { prepared.submit(); });
  }
  static void wait(void* call) {
    HostCall& self = *static_cast<HostCall*>(call);
    self.guarded([&](Prepared& prepared) {
      if (!self.submitted_) throw std::logic_error("wait before submit");
      prepared.wait();
    });
  }
  void check() {
    if (std::exception_ptr error = std::exchange(error_, nullptr)) std::rethrow_exception(error);
  }

 private:
  template <class Body>
  bool guarded(Body body) try {
    body(call_.on_any_thread());
    return true;
  } catch (...) {
    if (!error_) error_ = std::current_exception();
    return false;
  }

  BoundCall call_;
  bool submitted_ = false;
  std::exception_ptr error_;
};

template <class T>
std::uintptr_t address(T* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer);
}

// A method of MoE with the arguments of a call, which makes a Result of the request.
template <class Result, class Body, class Class>
void define_call(Class& type, const char* name, Body body) {
  const auto function = [body](std::shared_ptr<MoE> moe, py::array hidden, py::array ids, py::array gates,
                               py::array out, bool avx2, bool avx512, bool amx, std::optional<int> amx_min_tokens,
                               std::optional<std::string> isa, bool dynamic, bool numa) -> Result {
    return body(Request(std::move(moe), std::move(hidden), std::move(ids), std::move(gates), std::move(out),
                        {avx2, avx512, amx, amx_min_tokens, std::move(isa), dynamic, numa}));
  };
  type.def(name, function, py::arg("hidden").noconvert(), py::arg("ids").noconvert(), py::arg("gates").noconvert(),
           py::arg("out").noconvert(), py::kw_only(), py::arg("avx2") = false, py::arg("avx512") = false,
           py::arg("amx") = false, py::arg("amx_min_tokens") = py::none(), py::arg("isa") = py::none(), py::arg("dynamic") = false,
           py::arg("numa") = false);
}

template <class Held, class Class>
void define_holder(Class& type, const char* name) {
  define_call<std::unique_ptr<Held>>(type, name,
                                     [](Request request) { return std::make_unique<Held>(std::move(request)); });
}

void forward(const Request& request) {
  const py::gil_scoped_release unlocked;
  request.moe->forward(request.inputs, request.options);
}

py::dict counters(MoE& moe) {
  const Counters counted = moe.counters();
  py::dict numbers;
  for (const CounterTraits& counter : counter_table) numbers[counter.name] = counted.*counter.value;
  return numbers;
}

void define_moe(py::module_& module) {
  auto moe = py::class_<MoE, std::shared_ptr<MoE>>(module, "MoE")
                 .def(py::init<std::shared_ptr<PackedExperts>, std::shared_ptr<Team>, int>(), py::arg("weights"),
                      py::arg("team"), py::arg("tag") = 0)
                 .def("counters", counters);
  define_call<void>(moe, "forward", forward);
  define_holder<Ticket>(moe, "submit");
  define_holder<BoundCall>(moe, "prepare");
  define_holder<HostCall>(moe, "host_call");
}

}  // namespace

void bind_calls(py::module_& module) {
  py::class_<Ticket>(module, "Ticket").def("wait", &Ticket::wait).def_property_readonly("done", &Ticket::done);
  py::class_<BoundCall>(module, "Prepared")
      .def("forward", &BoundCall::forward)
      .def("submit", &BoundCall::submit)
      .def("wait", &BoundCall::wait)
      .def_property_readonly("done", &BoundCall::done);
  py::class_<HostCall>(module, "HostCall")
      .def_property_readonly("submit", [](const HostCall&) { return address(&HostCall::submit); })
      .def_property_readonly("wait", [](const HostCall&) { return address(&HostCall::wait); })
      .def_property_readonly("data", [](HostCall& call) { return address(&call); })
      .def("check", &HostCall::check);
  define_moe(module);
}

}  // namespace ktbench::binding
