// The fused operator's calls: forward, tickets, prepared calls, these as C functions, and calls requested by flags.
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <pybind11/stl.h>

#include "binding/arrays.h"
#include "binding/module.h"
#include "binding/request.h"
#include "core/activations.h"
#include "moe/prepared.h"
#include "runtime/flags.h"

namespace ktbench::binding {
namespace {

// The GIL is released only for work that takes time: getting it back may cost a time slice.
class GilRelease {
 public:
  explicit GilRelease(bool at_once) {
    if (!at_once) released_.emplace();
  }

 private:
  std::optional<py::gil_scoped_release> released_;
};

// A prepared call and its arrays, which are released with the GIL held, after the work without it.
class BoundCall {
 public:
  explicit BoundCall(Request request)
      : request_(std::move(request)), call_(std::in_place, request_.moe, request_.inputs, request_.options) {}
  ~BoundCall() {
    const GilRelease unlocked(done());
    call_.reset();
  }

  Prepared& on_any_thread() { return *call_; }
  py::array& out() { return request_.out; }
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

// One call that C functions can submit and wait for repeatedly on the same arrays. C has no exceptions: the first error
// is kept and raised by check().
class HostCall {
 public:
  explicit HostCall(Request request) : call_(std::move(request)) {}

  void submit() {
    submitted_ = false;
    guarded([](Prepared& prepared) { prepared.wait(); });
    submitted_ = guarded([](Prepared& prepared) { prepared.submit(); });
  }
  void wait() {
    guarded([&](Prepared& prepared) {
      if (!submitted_) throw std::logic_error("wait before submit");
      prepared.wait();
    });
  }
  bool done() { return call_.done(); }
  void check() {
    std::exception_ptr error;
    {
      const std::lock_guard lock(lock_);
      std::swap(error, error_);
    }
    if (error) std::rethrow_exception(error);
  }
  py::array& out() { return call_.out(); }

 private:
  template <class Body>
  bool guarded(Body body) try {
    body(call_.on_any_thread());
    return true;
  } catch (...) {
    const std::lock_guard lock(lock_);
    if (!error_) error_ = std::current_exception();
    return false;
  }

  BoundCall call_;
  bool submitted_ = false;
    std::mutex lock_;  // of error_: check() runs on other threads than submit and wait
  std::exception_ptr error_;
};

// A layer's hand-over to the host, as a pair of C functions for host nodes of a CUDA graph or stream: submit(data)
// begins the immediate and the deferred experts of this layer; wait(data) waits for the immediate ones and for those
// deferred by the previous layer, and adds the latter to the former. The deferred ones are awaited only in the next
// layer.
class HandOver {
 public:
  HandOver(std::shared_ptr<HostCall> immediate, std::shared_ptr<HostCall> deferred, std::shared_ptr<HostCall> previous)
      : immediate_(std::move(immediate)), deferred_(std::move(deferred)), previous_(std::move(previous)) {
    if (previous_ && previous_->out().nbytes() != immediate_->out().nbytes())
      throw py::value_error("the previous call has an output of another size");
    to_ = static_cast<bf16*>(immediate_->out().mutable_data());
    if (previous_) from_ = static_cast<const bf16*>(previous_->out().data());
    size_ = immediate_->out().size();
  }

  static void submit(void* hand_over) {
    const HandOver& self = *static_cast<HandOver*>(hand_over);
    self.immediate_->submit();
    if (self.deferred_) self.deferred_->submit();
  }
  static void wait(void* hand_over) {
    const HandOver& self = *static_cast<HandOver*>(hand_over);
    self.immediate_->wait();
    if (!self.previous_) return;
    self.previous_->wait();
    for (py::ssize_t i = 0; i < self.size_; ++i) self.to_[i] = to_bf16(widen(self.to_[i]) + widen(self.from_[i]));
  }
  static bool done(void* hand_over) {  // whether wait(data) would return at once
    const HandOver& self = *static_cast<HandOver*>(hand_over);
    return self.immediate_->done() && (!self.previous_ || self.previous_->done());
  }

 private:
  const std::shared_ptr<HostCall> immediate_, deferred_, previous_;
  bf16* to_ = nullptr;
  const bf16* from_ = nullptr;
  py::ssize_t size_ = 0;
};

// Hand-overs that a device requests by flags; they are kept until removed.
class HandOverFlags {
 public:
  HandOverFlags(py::array words, double limit_s)
      : words_(checked(std::move(words))), kept_(row(0).size()), watch_(row(0), row(1), nanoseconds(limit_s)) {}

  int add(std::shared_ptr<HandOver> hand_over) {
    const int slot = watch_.add({&HandOver::submit, &HandOver::done, &HandOver::wait, hand_over.get()});
    kept_[slot] = std::move(hand_over);
    return slot;
  }
  void remove(int slot) {
    if (slot < 0 || slot >= static_cast<int>(kept_.size()) || !kept_[slot]) throw py::index_error("no such slot");
    watch_.remove(slot);
    kept_[slot].reset();
  }
  void check() const { watch_.check(); }
  std::int64_t answered() const { return watch_.answered(); }

 private:
  static py::array checked(py::array words) {
    if (!words.dtype().is(py::dtype::of<std::int32_t>()) || words.ndim() != 2 || words.shape(0) != 2 || words.shape(1) < 1)
      throw py::value_error("words: must be int32 [2, slots]");
    check_contiguous(words, "words");
    check_writeable(words, "words");
    return words;
  }
  static std::chrono::nanoseconds nanoseconds(double seconds) {
    if (!(seconds >= 0 && seconds <= 1e6)) throw py::value_error("limit_s: allowed are 0 to 1e6");
    return std::chrono::nanoseconds(static_cast<std::int64_t>(1e9 * seconds));
  }
  std::span<std::uint32_t> row(int number) {
    const auto slots = static_cast<std::size_t>(words_.shape(1));
    return {static_cast<std::uint32_t*>(words_.mutable_data()) + number * slots, slots};
  }

  py::array words_;
  std::vector<std::shared_ptr<HandOver>> kept_;
  FlagWatch watch_;  // destroyed first: its thread reads the words and calls the hand-overs
};

template <class T>
std::uintptr_t address(T* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer);
}

// A method of MoE with the arguments of a call, which makes a Result from the request.
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
  define_call<std::shared_ptr<Held>>(type, name,
                                     [](Request request) { return std::make_shared<Held>(std::move(request)); });
}

void forward(const Request& request) {
  const py::gil_scoped_release unlocked;
  request.moe->forward(request.inputs, request.options);
}

void define_moe(py::module_& module) {
  auto moe = py::class_<MoE, std::shared_ptr<MoE>>(module, "MoE")
                 .def(py::init<std::shared_ptr<PackedExperts>, std::shared_ptr<Team>, int>(),
                      py::arg("weights").none(false), py::arg("team").none(false), py::arg("tag") = 0)
                 .def("counters", [](MoE& moe) { return numbers_of(moe.counters()); });
  define_call<void>(moe, "forward", forward);
  define_holder<Ticket>(moe, "submit");
  define_holder<BoundCall>(moe, "prepare");
  define_holder<HostCall>(moe, "host_call");
}

}  // namespace

void bind_calls(py::module_& module) {
  py::class_<Ticket, std::shared_ptr<Ticket>>(module, "Ticket").def("wait", &Ticket::wait).def_property_readonly("done", &Ticket::done);
  py::class_<BoundCall, std::shared_ptr<BoundCall>>(module, "Prepared")
      .def("forward", &BoundCall::forward)
      .def("submit", &BoundCall::submit)
      .def("wait", &BoundCall::wait)
      .def_property_readonly("done", &BoundCall::done);
  py::class_<HostCall, std::shared_ptr<HostCall>>(module, "HostCall").def("check", &HostCall::check);
  py::class_<HandOver, std::shared_ptr<HandOver>>(module, "HandOver")
      .def(py::init<std::shared_ptr<HostCall>, std::shared_ptr<HostCall>, std::shared_ptr<HostCall>>(),
           py::arg("immediate").none(false), py::arg("deferred") = nullptr, py::arg("previous") = nullptr)
      .def_property_readonly("submit", [](const HandOver&) { return address(&HandOver::submit); })
      .def_property_readonly("wait", [](const HandOver&) { return address(&HandOver::wait); })
      .def_property_readonly("data", [](HandOver& hand_over) { return address(&hand_over); });
  py::class_<HandOverFlags> flags(module, "HandOverFlags");
  flags.def(py::init<py::array, double>(), py::arg("words").noconvert(), py::arg("limit_s"))
      .def("add", &HandOverFlags::add, py::arg("hand_over").none(false))
      .def("remove", &HandOverFlags::remove, py::arg("slot"))
      .def("check", &HandOverFlags::check)
      .def_property_readonly("answered", &HandOverFlags::answered);
  flags.attr("BEGIN_AND_END") = static_cast<int>(FlagWatch::begin_and_end);
  flags.attr("END_ALONE") = static_cast<int>(FlagWatch::end_alone);
  define_moe(module);
}

}  // namespace ktbench::binding
