// One packed weight matrix [rows, columns] of a linear layer: strips in the layout that the MoE kernels read.
#pragma once

#include <memory>
#include <string>

#include "core/layout.h"
#include "moe/experts.h"
#include "runtime/mapped_file.h"
#include "runtime/memory.h"
#include "runtime/team.h"

namespace ktbench {

class PackedMatrix {
 public:
  // All zeros. Throws std::invalid_argument for sizes that check_size() or check_depth() reject, std::bad_alloc if it
  // does not fit.
  PackedMatrix(int rows, int columns, const Format& format);

  // A file written by save(): the weights stay in it, shared with every process that maps it. Throws std::system_error
  // for system errors, std::runtime_error for other files.
  static PackedMatrix map(const std::string& path);
  void save(const std::string& path) const;
  // See PackedExperts::check_file().
  void check_file() const;

  int rows() const { return rows_; }
  int columns() const { return columns_; }
  const Format& format() const { return format_; }
  int depth() const { return format_.padded_depth(columns_); }
  int strips() const { return round_up(rows_, 2 * strip_rows) / strip_rows; }
  std::size_t strip_bytes() const { return format_.strip_bytes(depth()); }
  std::size_t bytes() const { return strips() * strip_bytes(); }
  const std::byte* strip(int index) const { return data_ + index * strip_bytes(); }

  // Rows [first, first + count), which begin with a strip and end with one or with the matrix. With a team each thread
  // packs, and so first touches, its even share of the whole matrix, which it reads later. Throws std::invalid_argument
  // for other rows, std::logic_error if the weights are in a file.
  void write(MatrixView from, int first, int count, Team* team);
  // The same from blocks of the matrix's own format.
  void write(BlockView from, int first, int count, Team* team);
  // As stored: bf16, or integers times their scales.
  void read(MatrixOut to, Team* team) const;

 private:
  PackedMatrix(int rows, int columns, const Format& format, MappedFile file, std::size_t first);
  int filled_strips() const { return round_up(rows_, strip_rows) / strip_rows; }
  void check_rows(int first, int count) const;
  template <class View>
  void pack(const View& from, int first, int count, Team* team);
  template <class Body>
  void for_strips(Team* team, Body body) const;

  const int rows_, columns_;
  const Format format_;
  HugeBuffer storage_;
  std::unique_ptr<MappedFile> file_;
  std::byte* data_;
};

}  // namespace ktbench
