#include "binding/arrays.h"

namespace ktbench::binding {
namespace {

std::string shape_text(const std::vector<py::ssize_t>& shape) {
  std::string text;
  for (const py::ssize_t n : shape) text += (text.empty() ? "" : ", ") + (n < 0 ? std::string("any") : std::to_string(n));
  return "[" + text + "]";
}

bool fits(const std::vector<py::ssize_t>& shape, const std::vector<py::ssize_t>& expected) {
  if (shape.size() != expected.size()) return false;
  for (std::size_t i = 0; i < shape.size(); ++i)
    if (expected[i] >= 0 && shape[i] != expected[i]) return false;
  return true;
}

}  // namespace

void check(const py::array& array, const Expected& expected) {
  if (!array.dtype().equal(expected.dtype))
    throw py::type_error(std::string(expected.name) + " must be " + std::string(py::str(expected.dtype)) + ", not " +
                         std::string(py::str(array.dtype())));
  const std::vector<py::ssize_t> shape(array.shape(), array.shape() + array.ndim());
  if (!fits(shape, expected.shape))
    throw py::value_error(std::string(expected.name) + " must have shape " + shape_text(expected.shape) + ", not " +
                          shape_text(shape));
}

void check_contiguous(const py::array& array, const char* name) {
  if (!(array.flags() & py::array::c_style)) throw py::value_error(std::string(name) + " must be contiguous");
}

void check_writeable(const py::array& array, const char* name) {
  if (!array.writeable()) throw py::value_error(std::string(name) + " must be writeable");
}

MatrixView matrix(const py::array& array, const char* name, int rows, int columns) {
  check(array, {name, py::dtype::of<bf16>(), {rows, columns}});
  const py::ssize_t item = array.itemsize(), between_rows = array.strides(0);
  if ((columns > 1 && array.strides(1) != item) || between_rows < 0 || between_rows % item)
    throw py::value_error(std::string(name) + " must have contiguous rows");
  return {static_cast<const bf16*>(array.data()), static_cast<std::size_t>(between_rows / item)};
}

}  // namespace ktbench::binding
