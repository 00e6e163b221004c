#include "core/format_names.h"

#include <stdexcept>

namespace ktbench {

Format format_named(std::string_view name) {
  std::string known;
  for (const FormatTraits& traits : format_table) {
    if (name == traits.name) return traits.format;
    known += (known.empty() ? "" : ", ") + std::string(traits.name);
  }
  throw std::invalid_argument("precision '" + std::string(name) + "': allowed are " + known);
}

const FormatTraits& traits_of(const Format& format) { return format_table[row_of(format)]; }

int row_of(const Format& format) {
  for (int row = 0; row < format_count; ++row)
    if (format_table[row].format == format) return row;
  throw std::logic_error("a format that format_table does not list");
}

std::optional<Format> format_stored_as(int code, int group) {
  for (const FormatTraits& traits : format_table)
    if (traits.code == code && traits.format.group == group) return traits.format;
  return std::nullopt;
}

}  // namespace ktbench
