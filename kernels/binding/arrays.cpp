#include "binding/arrays.h"

#include "core/format_names.h"

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
    if (array.size() == 0) return 0;  // numpy's strides of empty arrays are arbitrary
  if ((array.shape(1) > 1 && array.strides(1) != item) || bytes < 0 || bytes % item)
    throw py::value_error(std::string(name) + " must have contiguous rows; its strides are " + std::to_string(bytes) +
                          " and " + std::to_string(array.strides(1)) + " bytes");
  return static_cast<std::size_t>(bytes);
}

std::string no_blocks(const char* name, const Format& format) {
  std::string with_blocks;
  for (const FormatTraits& traits : format_table)
    if (traits.format.has_blocks()) with_blocks += (with_blocks.empty() ? "" : ", ") + std::string(traits.name);
  return std::string(name) + ": precision " + traits_of(format).name + " has no blocks; precisions with blocks are " +
         with_blocks;
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
  if (!(array.flags() & py::array::c_style)) throw py::value_error(std::string(name) + " must be contiguous (C order): copy it with numpy.ascontiguousarray");
}

void check_writeable(const py::array& array, const char* name) {
  if (!array.writeable()) throw py::value_error(std::string(name) + " must be writeable, its array is read-only");
}

MatrixView matrix(const py::array& array, const char* name, int rows, int columns) {
  check(array, {name, py::dtype::of<bf16>(), {rows, columns}});
  return {static_cast<const bf16*>(array.data()), between_rows(array, name) / sizeof(bf16)};
}

BlockView blocks(const py::array& array, const char* name, int rows, int columns, const Format& format) {
  if (!format.has_blocks()) throw py::value_error(no_blocks(name, format));
  const int bytes = format.block_bytes();
  if (format.has_whole_blocks() && columns % format.group)
    throw py::value_error(std::string(name) + " has " + std::to_string(columns) + " columns, a block of " +
                          traits_of(format).name + " has " + std::to_string(format.group));
  check(array, {name, py::dtype::of<std::uint8_t>(), {rows, round_up(columns, format.group) / format.group * bytes}});
  return {static_cast<const std::byte*>(array.data()), between_rows(array, name), static_cast<std::size_t>(bytes),
          format.group};
}

}  // namespace ktbench::binding
