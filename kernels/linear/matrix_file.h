// The head of a file of a packed matrix.
#pragma once

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "core/format_names.h"
#include "linear/matrix.h"

namespace ktbench::matrix_file {

inline constexpr std::size_t head_bytes = 4096;  // the weights begin on a page
inline constexpr char magic[15] = {'k', 't', 'b', 'e', 'n', 'c', 'h', ' ', 'm', 'a', 't', 'r', 'i', 'x', ' '};
inline constexpr std::uint8_t version = 1;

// No padding, whose bytes would be undefined.
struct Head {
  char magic[15];
  std::uint8_t version;
  std::int32_t rows, columns, format, group;  // FormatTraits::code
};
static_assert(sizeof(Head) == 32);

inline Head head_of(const PackedMatrix& matrix) {
  const Format& format = matrix.format();
  Head head{{}, version, matrix.rows(), matrix.columns(), traits_of(format).code, format.group};
  std::copy(std::begin(magic), std::end(magic), head.magic);
  return head;
}

inline bool has_magic(const Head& head) { return std::equal(std::begin(magic), std::end(magic), head.magic); }

inline bool is_valid(const Head& head) {
  const std::optional<Format> format = format_stored_as(head.format, head.group);
  return head.rows > 0 && head.rows <= largest_size && head.columns > 0 && head.columns <= largest_size && format &&
         holds(*format, head.columns);
}

// Throws std::runtime_error naming the file if it does not begin like one of this build.
inline Head head_in(const MappedFile& file, const std::string& path) {
  Head head{};
  if (file.bytes() >= head_bytes) std::memcpy(&head, file.as<>(), sizeof head);
  if (has_magic(head) && head.version != version)
    throw std::runtime_error(path + " holds a packed matrix of file version " + std::to_string(head.version) +
                             ", not " + std::to_string(version) + ": pack it again");
  if (!has_magic(head) || !is_valid(head)) throw std::runtime_error(path + " holds no packed matrix");
  return head;
}

}  // namespace ktbench::matrix_file
