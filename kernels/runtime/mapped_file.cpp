#include "runtime/mapped_file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <mutex>
#include <system_error>
#include <utility>

namespace ktbench {

// Never freed but reused, since the handler takes no lock.
struct MappedFile::Watch {
  std::atomic<std::byte*> begin{nullptr};  // null while nobody uses it
  std::atomic<std::size_t> bytes{0};
  std::atomic<bool> lost{false};
  Watch* next = nullptr;

  bool holds(const std::byte* at) const {
    const std::byte* first = begin.load();
    return first && at >= first && at < first + bytes.load();
  }
};

namespace {

using Watch = MappedFile::Watch;

std::atomic<Watch*> watches{nullptr};
struct sigaction handler_before;

// POSIX does not guarantee that mmap(2) may be called here; on Linux it is just a system call.
void put_zeros(Watch& watch) {
  watch.lost = true;
  constexpr int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
  if (mmap(watch.begin, watch.bytes, PROT_READ | PROT_WRITE, flags, -1, 0) == MAP_FAILED) _exit(128 + SIGBUS);
}

void on_bus_error(int number, siginfo_t* info, void*) {
  const int error = errno;
  for (Watch* watch = watches; watch; watch = watch->next)
    if (watch->holds(static_cast<std::byte*>(info->si_addr))) {
      put_zeros(*watch);
      errno = error;
      return;
    }
  sigaction(SIGBUS, &handler_before, nullptr);
  raise(number);  // arrives once this handler has returned
  errno = error;
}

bool install_handler() {
  struct sigaction ours {};
  ours.sa_sigaction = on_bus_error;
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
  return sigaction(SIGBUS, &ours, &handler_before) == 0;
}

Watch& watch_over(std::byte* begin, std::size_t bytes) {
  static std::mutex lock;
  const std::lock_guard guard(lock);
  [[maybe_unused]] static const bool installed = install_handler();
  Watch* watch = watches;
  while (watch && watch->begin.load()) watch = watch->next;
  if (!watch) {
    watch = new Watch;
    watch->next = watches;
    watches = watch;
  }
  watch->lost = false;
  watch->bytes = bytes;
  watch->begin = begin;
  return *watch;
}

[[noreturn]] void refuse(int error, const char* deed, const std::string& path) {
  throw std::system_error(error, std::generic_category(), std::string("cannot ") + deed + " " + path);
}

class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor() {
    if (number_ >= 0) close(number_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  operator int() const { return number_; }

 private:
  const int number_;
};

struct Partial {
  std::string path;
  int file;
};

// A unique name, so that several processes may save one file at a time. File below 0 if there is none.
Partial new_partial(const std::string& path) {
  for (int number = 0;; ++number) {
    const std::string partial = path + ".partial-" + std::to_string(number);
    const int file = ::open(partial.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file >= 0 || errno != EEXIST) return {partial, file};
  }
}

}  // namespace

MappedFile::MappedFile(std::string path, std::string partial, Mapping mapping)
    : path_(std::move(path)),
      partial_(std::move(partial)),
      mapping_(std::move(mapping)),
      watch_(mapping_.data() ? &watch_over(as<>(), bytes()) : nullptr) {}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      partial_(std::exchange(other.partial_, std::string())),
      mapping_(std::move(other.mapping_)),
      watch_(std::exchange(other.watch_, nullptr)) {}

MappedFile::~MappedFile() {
  if (!partial_.empty()) unlink(partial_.c_str());
  if (watch_) watch_->begin = nullptr;
}

MappedFile MappedFile::create(const std::string& path, std::size_t bytes) {
  struct stat status;
  if (!stat(path.c_str(), &status) && !S_ISREG(status.st_mode)) refuse(EINVAL, "replace, as it is no regular file,", path);
  const Partial partial = new_partial(path);
  if (partial.file < 0) refuse(errno, "create", path);
  const Descriptor file(partial.file);
  MappedFile unwritten(path, partial.path, Mapping());  // removes it when something fails
  if (const int error = posix_fallocate(file, 0, static_cast<off_t>(bytes))) refuse(error, "make room for", path);
  Mapping mapping(bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, "cannot map " + path);
  return {path, std::exchange(unwritten.partial_, ""), std::move(mapping)};
}

MappedFile MappedFile::open(const std::string& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status;
  if (file < 0 || fstat(file, &status)) refuse(errno, "open", path);
  if (status.st_size == 0) refuse(EINVAL, "map, as it is empty,", path);
  MappedFile opened(path, "", Mapping(status.st_size, PROT_READ, MAP_SHARED, file, "cannot map " + path));
  madvise(opened.as<>(), opened.bytes(), MADV_HUGEPAGE);  // few file systems follow this advice
  madvise(opened.as<>(), opened.bytes(), MADV_WILLNEED);
  return opened;
}

void MappedFile::check() const {
  if (watch_ && watch_->lost) refuse(EIO, "read or write all of", path_);
}

void MappedFile::flush() {
  if (msync(as<>(), bytes(), MS_SYNC)) refuse(errno, "write", path_);
  check();
  if (partial_.empty()) return;
  if (rename(partial_.c_str(), path_.c_str())) refuse(errno, "name", path_);
  partial_.clear();
}

}  // namespace ktbench
