// Scratch memory of attention, and padded rows in it. In an anonymous namespace, see core/epilogue.h.
#pragma once

#include "core/layout.h"

namespace ktbench {
namespace {

// Hands out scratch memory in consecutive parts.
class Scratch {
 public:
  explicit Scratch(std::byte* begin) : at_(begin) {}

  template <class T>
  T* take(std::size_t count) {
    std::byte* const begin = at_;
    at_ += (count * sizeof(T) + line_bytes - 1) / line_bytes * line_bytes;
    return reinterpret_cast<T*>(begin);
  }

 private:
  std::byte* at_;
};

void copy_padded(const bf16* from, int size, int padded, bf16* to) {
  __builtin_memcpy(to, from, size * sizeof(bf16));
  __builtin_memset(to + size, 0, (padded - size) * sizeof(bf16));
}

}  // namespace
}  // namespace ktbench
