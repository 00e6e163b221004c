#include "runtime/mapping.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstdint>
#include <new>
#include <system_error>
#include <utility>

namespace ktbench {
namespace {

[[noreturn]] void refuse(const std::string& what) {
  if (errno == ENOMEM) throw std::bad_alloc();
  throw std::system_error(errno, std::generic_category(), what);
}

// mmap guarantees only 4 KiB alignment: map one huge page more and unmap both ends, where nothing can be stored yet.
void* aligned_range(std::size_t bytes, const std::string& what) {
  void* raw = mmap(nullptr, whole_huge_pages(bytes + 1), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) refuse(what);
  char* begin = static_cast<char*>(raw);
  char* aligned = reinterpret_cast<char*>(whole_huge_pages(reinterpret_cast<std::uintptr_t>(begin)));
  if (aligned != begin) munmap(begin, aligned - begin);
  if (const std::size_t rest = huge_page - (aligned - begin)) munmap(aligned + bytes, rest);
  return aligned;
}

}  // namespace

Mapping::Mapping(std::size_t bytes, int protection, int flags, int file, const std::string& what) : bytes_(bytes) {
  if (bytes == 0) return;
  data_ = aligned_range(whole_huge_pages(bytes), what);
  if (mmap(data_, bytes, protection, flags | MAP_FIXED, file, 0) != MAP_FAILED) return;
  const int error = errno;
  munmap(data_, whole_huge_pages(bytes));
  errno = error;
  refuse(what);
}

Mapping::~Mapping() {
  if (data_) munmap(data_, whole_huge_pages(bytes_));
}

Mapping::Mapping(Mapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

}  // namespace ktbench
