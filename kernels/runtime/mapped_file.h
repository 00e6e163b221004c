// A file as memory: written once, then shared read-only by every process that maps it.
#pragma once

#include <cstddef>
#include <string>

#include "runtime/mapping.h"

namespace ktbench {

// Truncating the file while it is mapped crashes its readers (SIGBUS).
class MappedFile {
 public:
  // Writable, zero-filled, at least one byte, its place on disk taken: a full disk is an error here, not a crash later.
  // Has its name from flush() on and is deleted without it, so that a half-written file can never be mapped.
  // Throws std::system_error with the file's name.
  static MappedFile create(const std::string& path, std::size_t bytes);
  // Read-only, from its beginning; writing to it crashes. Throws std::system_error with the file's name, also for an
  // empty one.
  static MappedFile open(const std::string& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;

  template <class T = std::byte>
  T* as() const {
    return static_cast<T*>(mapping_.data());
  }
  std::size_t bytes() const { return mapping_.bytes(); }

  // Returns when what was written is on disk under the file's name. A file of that name is replaced; processes that
  // have it mapped keep the old one. Throws std::system_error with the file's name.
  void flush();

 private:
  MappedFile(std::string path, std::string partial, Mapping mapping);

  std::string path_;
  std::string partial_;  // the name it is written under; empty once it has its own
  Mapping mapping_;
};

}  // namespace ktbench
