// A file as memory: written once, then shared read-only by every process that maps it.
#pragma once

#include <cstddef>
#include <string>

#include "runtime/mapping.h"

namespace ktbench {

// Where a page cannot be had any more, as the file was truncated, or its disk is full or gone, the whole mapping becomes
// zeros: check() tells. A handler of SIGBUS sees to it, which passes on what is about other memory.
class MappedFile {
 public:
  // Writable, zero-filled, at least one byte, its place on disk taken: a full disk is an error here, not a crash later.
  // Has its name from flush() on and is deleted without it, so that a half-written file can never be mapped.
  // Throws std::system_error with the file's name, also where that is no regular file: a device stays what it is.
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

  // Throws std::system_error with the file's name where what was read or written so far may have been zeros in place of
  // the file.
  void check() const;

  // Returns when what was written is on disk under the file's name. A file of that name is replaced; processes that
  // have it mapped keep the old one. Throws std::system_error with the file's name.
  void flush();

  struct Watch;  // what the handler knows of a mapping

 private:
  MappedFile(std::string path, std::string partial, Mapping mapping);

  std::string path_;
  std::string partial_;  // the name it is written under; empty once it has its own
  Mapping mapping_;
  Watch* watch_;
};

}  // namespace ktbench
