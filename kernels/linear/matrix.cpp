#include "linear/matrix.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "linear/matrix_file.h"
#include "moe/pack.h"

namespace ktbench {
namespace {

int checked(const char* name, int size) {
  check_size(name, size);
  return size;
}

int whole_blocks(int columns, const Format& format) {
  check_depth("columns", checked("columns", columns), format);
  return columns;
}

}  // namespace

PackedMatrix::PackedMatrix(int rows, int columns, const Format& format)
    : rows_(checked("rows", rows)),
      columns_(whole_blocks(columns, format)),
      format_(format),
      storage_(bytes()),
      data_(storage_.as<>()) {}

PackedMatrix::PackedMatrix(int rows, int columns, const Format& format, MappedFile file, std::size_t first)
    : rows_(rows),
      columns_(columns),
      format_(format),
      file_(std::make_unique<MappedFile>(std::move(file))),
      data_(file_->as<>() + first) {}

PackedMatrix PackedMatrix::map(const std::string& path) {
  MappedFile file = MappedFile::open(path);
  const std::size_t held = file.bytes();
  const matrix_file::Head head = matrix_file::head_in(file, path);
  const Format format = format_stored_as(head.format, head.group).value();
  PackedMatrix mapped(head.rows, head.columns, format, std::move(file), matrix_file::head_bytes);
  if (const std::size_t needed = matrix_file::head_bytes + mapped.bytes(); held != needed)
    throw std::runtime_error(path + " has " + std::to_string(held) + " bytes, its packed matrix needs " +
                             std::to_string(needed));
  return mapped;
}

void PackedMatrix::save(const std::string& path) const {
  MappedFile file = MappedFile::create(path, matrix_file::head_bytes + bytes());
  const matrix_file::Head head = matrix_file::head_of(*this);
  std::memcpy(file.as<>(), &head, sizeof head);
  std::memcpy(file.as<>() + matrix_file::head_bytes, data_, bytes());
  check_file();
  file.flush();
}

void PackedMatrix::check_file() const {
  if (file_) file_->check();
}

void PackedMatrix::check_rows(int first, int count) const {
  const long end = static_cast<long>(first) + count;
  const std::string what = "rows " + std::to_string(first) + ".." + std::to_string(end - 1);
  if (first < 0 || end > rows_) throw std::invalid_argument(what + " are not all in 0.." + std::to_string(rows_ - 1));
  if (first % strip_rows || (end % strip_rows && end != rows_))
    throw std::invalid_argument(what + " must begin at a multiple of " + std::to_string(strip_rows) +
                                " and end before one or with the matrix");
}

template <class Body>
void PackedMatrix::for_strips(Team* team, Body body) const {
  const auto work = [&](std::int64_t part, std::int64_t parts) {
    for (auto s = filled_strips() * part / parts; s < filled_strips() * (part + 1) / parts; ++s)
      body(static_cast<int>(s));
  };
  if (!team) return work(0, 1);
  team->run([&](int thread) { work(thread, team->threads()); });
}

template <class View>
void PackedMatrix::pack(const View& from, int first, int count, Team* team) {
  check_rows(first, count);
  if (file_) throw std::logic_error("a packed matrix in a file cannot be written");
  for_strips(team, [&](int s) {
    const int row = s * strip_rows - first;
    if (row < 0 || row >= count) return;
    pack_strip(from.at(row, 0), count - row, columns_, format_, data_ + s * strip_bytes());
  });
}

void PackedMatrix::write(MatrixView from, int first, int count, Team* team) { pack(from, first, count, team); }
void PackedMatrix::write(BlockView from, int first, int count, Team* team) { pack(from, first, count, team); }

void PackedMatrix::read(MatrixOut to, Team* team) const {
  for_strips(team, [&](int s) {
    const int row = s * strip_rows;
    unpack_strip(strip(s), rows_ - row, columns_, format_, to.data + row * to.stride, to.stride);
  });
  check_file();
}

}  // namespace ktbench
