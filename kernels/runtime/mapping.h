// Address space that begins on a huge page's boundary, unmapped on destruction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <string>

namespace ktbench {

class Mapping {
 public:
  Mapping() = default;
  // Like mmap(2); zero bytes map nothing. Throws std::bad_alloc, or std::system_error beginning with `what`.
  Mapping(std::size_t bytes, int protection, int flags, int file, const std::string& what);
  ~Mapping();
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;

  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

constexpr std::size_t huge_page = 2ul << 20;

// Throws std::bad_alloc on overflow.
constexpr std::size_t whole_huge_pages(std::size_t bytes) {
  if (bytes > SIZE_MAX - huge_page) throw std::bad_alloc();
  return (bytes + huge_page - 1) / huge_page * huge_page;
}

}  // namespace ktbench
