#pragma once

#include <pybind11/pybind11.h>

#include <climits>
#include <string>

namespace ktbench::binding {

// Throws ValueError for what no int holds.
inline int checked_count(const char* name, pybind11::ssize_t n) {
  if (n > INT_MAX) throw pybind11::value_error(std::string(name) + "=" + std::to_string(n) + " is too large");
  return static_cast<int>(n);
}

}  // namespace ktbench::binding
