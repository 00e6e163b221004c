// The head of a file of packed experts.
#pragma once

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "core/format_names.h"
#include "moe/experts.h"

namespace ktbench {

inline constexpr std::size_t head_bytes = 4096;  // the weights begin on a page
inline constexpr char file_magic[15] = {'k', 't', 'b', 'e', 'n', 'c', 'h', ' ', 'e', 'x', 'p', 'e', 'r', 't', 's'};
inline constexpr std::uint8_t file_version = 2;

// No padding, whose bytes would be undefined.
struct FileHead {
  char magic[15];
  std::uint8_t version;
  std::int32_t experts, hidden, intermediate, format, group, down_format, down_group;  // FormatTraits::code
  std::int16_t biases, act;
  double alpha, limit, offset;

  // Throws std::bad_optional_access for a format that this build does not have.
  Geometry geometry() const {
    return {experts, hidden, intermediate, format_stored_as(format, group).value(), biases != 0,
            format_stored_as(down_format, down_group).value()};
  }
  Glu glu() const { return {static_cast<Act>(act), alpha, limit, offset}; }
};
static_assert(sizeof(FileHead) == 72);

inline FileHead head_of(const Geometry& g, const Glu& glu) {
  FileHead head{{}, file_version, g.experts, g.hidden, g.intermediate, traits_of(g.format).code,
                g.format.group, traits_of(g.down_format()).code, g.down_format().group, g.biases,
                static_cast<std::int16_t>(glu.act), glu.alpha, glu.limit, glu.offset};
  std::copy(std::begin(file_magic), std::end(file_magic), head.magic);
  return head;
}

inline bool has_magic(const FileHead& head) {
  return std::equal(std::begin(file_magic), std::end(file_magic), head.magic);
}

inline bool is_valid(const FileHead& head) {
  const std::optional<Format> format = format_stored_as(head.format, head.group);
  const std::optional<Format> down = format_stored_as(head.down_format, head.down_group);
  const auto counts = [](std::int32_t size) { return size > 0 && size <= largest_size; };
  const bool sized = counts(head.experts) && counts(head.hidden) && counts(head.intermediate);
  const bool whole = format && down && holds(*format, head.hidden) && holds(*down, head.intermediate);
  const bool named = head.act >= 0 && head.act < acts;
  return sized && whole && named && (head.biases == 0 || head.biases == 1) && error_in(head.glu()).empty();
}

// Throws std::runtime_error naming the file if the rest cannot be experts of this build.
inline FileHead head_in(const MappedFile& file, const std::string& path) {
  FileHead head{};
  if (file.bytes() >= head_bytes) std::memcpy(&head, file.as<>(), sizeof head);
  if (has_magic(head) && head.version != file_version)
    throw std::runtime_error(path + " holds packed experts of file version " + std::to_string(head.version) + ", not " +
                             std::to_string(file_version) + ": pack them again");
  if (!has_magic(head) || !is_valid(head)) throw std::runtime_error(path + " holds no packed experts");
  const std::optional<std::size_t> bytes = bytes_of(head.geometry());
  if (!bytes) throw std::runtime_error(path + " holds no packed experts");
  const std::size_t needed = head_bytes + *bytes;
  if (file.bytes() != needed)
    throw std::runtime_error(path + " has " + std::to_string(file.bytes()) + " bytes, its packed experts need " +
                             std::to_string(needed));
  return head;
}

}  // namespace ktbench
