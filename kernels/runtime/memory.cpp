#include "runtime/memory.h"

#include <sys/mman.h>

#include <cstdint>
#include <new>
#include <utility>

namespace ktbench {
namespace {

constexpr std::size_t huge_page = 2ul << 20;

std::size_t whole_pages(std::size_t bytes) { return (bytes + huge_page - 1) / huge_page * huge_page; }

// mmap promises 4 KiB alignment only: map one huge page more, give both ends back.
void* map_aligned(std::size_t bytes) {
  void* raw = mmap(nullptr, bytes + huge_page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) throw std::bad_alloc();
  char* begin = static_cast<char*>(raw);
  char* aligned = reinterpret_cast<char*>(whole_pages(reinterpret_cast<std::uintptr_t>(begin)));
  if (aligned != begin) munmap(begin, aligned - begin);
  if (const std::size_t rest = huge_page - (aligned - begin)) munmap(aligned + bytes, rest);
  return aligned;
}

}  // namespace

HugeBuffer::HugeBuffer(std::size_t bytes) : bytes_(whole_pages(bytes)) {
  if (bytes_ == 0) return;
  data_ = map_aligned(bytes_);
  madvise(data_, bytes_, MADV_HUGEPAGE);  // a wish: without it everything is right, and slower
}

HugeBuffer::~HugeBuffer() {
  if (data_) munmap(data_, bytes_);
}

HugeBuffer::HugeBuffer(HugeBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

HugeBuffer& HugeBuffer::operator=(HugeBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

void HugeBuffer::reserve(std::size_t bytes) {
  if (bytes <= bytes_) return;
  *this = HugeBuffer();
  *this = HugeBuffer(bytes);
}

}  // namespace ktbench
