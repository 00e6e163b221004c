#include "runtime/openmp.h"

#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include <array>
#include <stdexcept>
#include <string>
#include <string_view>

namespace ktbench {
namespace {

// The runtime's entry points as the GNU OpenMP ABI names them; LLVM's and Intel's runtimes export the same.
struct Runtime {
  void (*parallel)(void (*body)(void*), void* data, unsigned threads, unsigned flags);
  int (*thread_number)();
  int (*team_size)();
};

// PyTorch's wheels ship the runtime under modified names (libgomp-<hash>.so.1), so only the stem is compared.
bool is_openmp(std::string_view path) {
  const std::string_view name = path.substr(path.rfind('/') + 1);
  for (const std::string_view stem : std::array<std::string_view, 3>{"libgomp", "libiomp5", "libomp"})
    if (name.starts_with(stem)) return true;
  return false;
}

int keep_openmp(dl_phdr_info* object, std::size_t, void* found) {
  if (!is_openmp(object->dlpi_name)) return 0;
  *static_cast<std::string*>(found) = object->dlpi_name;
  return 1;
}

template <class Function>
void look_up(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (!function) throw std::runtime_error(std::string("the loaded OpenMP runtime has no ") + name);
}

// Never loads another runtime: it would bring a second set of spinning threads.
Runtime find_runtime() {
  std::string path;
  dl_iterate_phdr(keep_openmp, &path);
  void* library = path.empty() ? nullptr : dlopen(path.c_str(), RTLD_LAZY | RTLD_NOLOAD);
  if (!library) throw std::runtime_error("no OpenMP runtime is loaded in this process: import torch first");
  Runtime runtime;
  look_up(library, "GOMP_parallel", runtime.parallel);
  look_up(library, "omp_get_thread_num", runtime.thread_number);
  look_up(library, "omp_get_num_threads", runtime.team_size);
  return runtime;
}

const Runtime& runtime() {
  static const Runtime found = find_runtime();
  return found;
}

// How long a thread spins at a barrier, waiting for another one's last task, before it parks.
constexpr std::chrono::microseconds kSpin{1000};

// The process that first used OpenMP's threads, 0 before. GNU OpenMP does not notice a fork: it waits for them in the
// child, too.
std::atomic<pid_t> first_user{0};

}  // namespace

OpenMPTeam::OpenMPTeam(int threads) : Team(threads, kSpin, Thread0::caller) {
  runtime();
  if (const pid_t user = first_user; user && user != getpid())
    throw std::runtime_error("OpenMP's threads worked before the fork and are not in this process: start a new one");
}

void OpenMPTeam::enter() {
  if (!first_user.load(std::memory_order_relaxed)) first_user = getpid();
  runtime().parallel([](void* team) { static_cast<OpenMPTeam*>(team)->join(); }, this,
                     static_cast<unsigned>(threads()), 0);
  if (granted_ != threads())
    throw std::runtime_error("OpenMP gave " + std::to_string(granted_) + " of " + std::to_string(threads()) +
                             " threads: OMP_THREAD_LIMIT, OMP_DYNAMIC or an enclosing parallel region holds it back");
}

// If a thread is missing, no thread may enter a phase: the others would wait for it at the first barrier.
void OpenMPTeam::join() {
  granted_ = runtime().team_size();
  if (granted_ == threads()) take_part(runtime().thread_number());
}

}  // namespace ktbench
