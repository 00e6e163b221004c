// Anonymous memory on huge pages where the system grants them: 4 KiB pages cost a third of the decode bandwidth.
#pragma once

#include <cstddef>

namespace ktbench {

class HugeBuffer {
 public:
  HugeBuffer() = default;
  // Throws std::bad_alloc. Zero-filled; a page gets its place when it is first touched, near the thread that does so.
  explicit HugeBuffer(std::size_t bytes);
  ~HugeBuffer();
  HugeBuffer(HugeBuffer&& other) noexcept;
  HugeBuffer& operator=(HugeBuffer&& other) noexcept;

  template <class T = std::byte>
  T* as() const {
    return static_cast<T*>(data_);
  }
  std::size_t bytes() const { return bytes_; }

  // At least `bytes`; what it held is lost when it has to grow.
  void reserve(std::size_t bytes);

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace ktbench
