// Checks of numpy arrays: dtype, shape and strides, with an exception that names the argument.
#pragma once

#include <pybind11/numpy.h>

#include <string>
#include <vector>

#include "moe/experts.h"

namespace ktbench::binding {

namespace py = pybind11;

// Throws ValueError for sizes that no int can hold once padded.
inline int checked_count(const char* name, py::ssize_t n) {
  if (n > largest_size) throw py::value_error(std::string(name) + "=" + std::to_string(n) + " is too large");
  return static_cast<int>(n);
}

// Requirements of an array: its name in messages, dtype, and shape with -1 for "any".
struct Expected {
  const char* name;
  py::dtype dtype;
  std::vector<py::ssize_t> shape;
};

// Throws TypeError for the dtype, ValueError for the shape.
void check(const py::array& array, const Expected& expected);
void check_contiguous(const py::array& array, const char* name);
void check_writeable(const py::array& array, const char* name);

// A bf16 matrix [rows, columns] as uint16. Elements within a row must be contiguous, rows need not be.
MatrixView matrix(const py::array& array, const char* name, int rows, int columns);

// The same as GGUF blocks of the format: uint8 [rows, bytes]. Throws ValueError for a format without blocks.
BlockView blocks(const py::array& array, const char* name, int rows, int columns, const Format& format);

}  // namespace ktbench::binding
