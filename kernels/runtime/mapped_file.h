// A file as memory: written once, then shared read-only by every process that maps it.
#pragma once

#include <cstddef>
#include <string>

#include "runtime/mapping.h"

namespace ktbench {

// If a page becomes unavailable, because the file was truncated, or its disk is full or gone, the whole mapping becomes
// zeros, which check() reports. This is done by a SIGBUS handler, which passes on signals about other memory.
class MappedFile {
 public:
  // Writable, zero-filled, at least one byte, with reserved disk space: a full disk is an error here, not a crash
  // later. It gets its name in flush() and is deleted otherwise, so that an incomplete file can never be mapped. Throws
  // std::system_error with the file's name, also if that is not a regular file: a device is not replaced.
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

  // Throws std::system_error with the file's name if reads or writes so far may have used zeros instead of the file.
  void check() const;

  // Returns when the contents are on disk under the file's name. An existing file is replaced; processes that have it
  // mapped keep the old one. Throws std::system_error with the file's name.
  void flush();

    struct Watch;  // the handler's data about a mapping

 private:
  MappedFile(std::string path, std::string partial, Mapping mapping);

  std::string path_;
    std::string partial_;  // the temporary name; empty once it has its own
  Mapping mapping_;
  Watch* watch_;
};

}  // namespace ktbench
