// Anonymous memory on huge pages, if the system grants them: 4 KiB pages cost a third of the decode bandwidth.
#pragma once

#include <cstddef>

#include "runtime/mapping.h"
#include "runtime/numa.h"

namespace ktbench {

class HugeBuffer {
 public:
  HugeBuffer() = default;
  // Zero-filled, whole huge pages. Throws std::bad_alloc; std::system_error if the kernel refuses the placement.
  explicit HugeBuffer(std::size_t bytes, const Placement& placement = FirstTouch{});

  template <class T = std::byte>
  T* as() const {
    return static_cast<T*>(mapping_.data());
  }
  std::size_t bytes() const { return mapping_.bytes(); }

  // At least `bytes`; contents and address are lost if it must grow.
  void reserve(std::size_t bytes, const Placement& placement = FirstTouch{});

 private:
  Mapping mapping_;
};

}  // namespace ktbench
