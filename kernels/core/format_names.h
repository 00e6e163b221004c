// Looking up rows of the format table; not for files with vector code.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "core/formats.h"

namespace ktbench {

// Throws std::invalid_argument with the allowed names.
Format format_named(std::string_view name);

// Throw std::logic_error for a format without a row.
const FormatTraits& traits_of(const Format& format);
int row_of(const Format& format);

// The format of a file's code and group, if there is one.
std::optional<Format> format_stored_as(int code, int group);

}  // namespace ktbench
