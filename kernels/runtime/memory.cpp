#include "runtime/memory.h"

#include <sys/mman.h>

namespace ktbench {

HugeBuffer::HugeBuffer(std::size_t bytes, const Placement& placement)
    : mapping_(whole_huge_pages(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, "memory") {
  if (bytes == 0) return;
  place(as<>(), this->bytes(), placement);
  madvise(as<>(), this->bytes(), MADV_HUGEPAGE);  // a hint: without it results are the same, only slower
}

void HugeBuffer::reserve(std::size_t bytes, const Placement& placement) {
  if (bytes <= this->bytes()) return;
  *this = HugeBuffer();
  *this = HugeBuffer(bytes, placement);
}

}  // namespace ktbench
