// Address space that begins on a huge page's boundary, given back on destruction.
#pragma once

#include <cstddef>
#include <string>

namespace ktbench {

class Mapping {
 public:
  Mapping() = default;
  // As mmap(2); no bytes map nothing. Throws std::bad_alloc, or std::system_error that begins with `what`.
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

constexpr std::size_t whole_huge_pages(std::size_t bytes) { return (bytes + huge_page - 1) / huge_page * huge_page; }

}  // namespace ktbench
