#include "binding/arrays.h"

#include "binding/formats.h"
#include "moe/gguf.h"

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

// Bytes between rows, whose elements lie next to each other.
std::size_t between_rows(const py::array& array, const char* name) {
  const py::ssize_t item = array.itemsize(), bytes = array.strides(0);
  if ((array.shape(1) > 1 && array.strides(1) != item) || bytes < 0 || bytes % item)
    throw py::value_error(std::string(name) + " must have contiguous rows");
  return static_cast<std::size_t>(bytes);
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
  return {static_cast<const bf16*>(array.data()), between_rows(array, name) / sizeof(bf16)};
}

BlockView blocks(const py::array& array, const char* name, int rows, int columns, const Format& format) {
  if (!format.is_gguf())
    throw py::value_error(std::string(name) + ": weights of precision " + name_of(format) +
                          " are not written in blocks, those of q8_0 and q4_0 are");
  const int bytes = block_bytes(format.precision);
  check(array, {name, py::dtype::of<std::uint8_t>(), {rows, columns / gguf_depth * bytes}});
  return {static_cast<const std::byte*>(array.data()), between_rows(array, name), static_cast<std::size_t>(bytes)};
}

}  // namespace ktbench::binding
