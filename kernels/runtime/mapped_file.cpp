#include "runtime/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <system_error>
#include <utility>

namespace ktbench {
namespace {

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

// A unique name, so that several processes may save one file at a time. File below 0 where none can be had.
Partial new_partial(const std::string& path) {
  for (int number = 0;; ++number) {
    const std::string partial = path + ".partial-" + std::to_string(number);
    const int file = ::open(partial.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file >= 0 || errno != EEXIST) return {partial, file};
  }
}

}  // namespace

MappedFile::MappedFile(std::string path, std::string partial, Mapping mapping)
    : path_(std::move(path)), partial_(std::move(partial)), mapping_(std::move(mapping)) {}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      partial_(std::exchange(other.partial_, std::string())),
      mapping_(std::move(other.mapping_)) {}

MappedFile::~MappedFile() {
  if (!partial_.empty()) unlink(partial_.c_str());
}

MappedFile MappedFile::create(const std::string& path, std::size_t bytes) {
  const Partial partial = new_partial(path);
  if (partial.file < 0) refuse(errno, "create", path);
  const Descriptor file(partial.file);
  MappedFile created(path, partial.path, Mapping());  // from here on it is removed when something fails
  if (const int error = posix_fallocate(file, 0, static_cast<off_t>(bytes))) refuse(error, "make room for", path);
  created.mapping_ = Mapping(bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, "cannot map " + path);
  return created;
}

MappedFile MappedFile::open(const std::string& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status;
  if (file < 0 || fstat(file, &status)) refuse(errno, "open", path);
  if (status.st_size == 0) refuse(EINVAL, "map, as it is empty,", path);
  MappedFile opened(path, "", Mapping(status.st_size, PROT_READ, MAP_SHARED, file, "cannot map " + path));
  madvise(opened.as<>(), opened.bytes(), MADV_HUGEPAGE);  // advice that few file systems follow
  madvise(opened.as<>(), opened.bytes(), MADV_WILLNEED);
  return opened;
}

void MappedFile::flush() {
  if (msync(as<>(), bytes(), MS_SYNC)) refuse(errno, "write", path_);
  if (partial_.empty()) return;
  if (rename(partial_.c_str(), path_.c_str())) refuse(errno, "name", path_);
  partial_.clear();
}

}  // namespace ktbench
