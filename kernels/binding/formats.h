// Precisions as Python names them.
#pragma once

#include <string>

#include "core/layout.h"

namespace ktbench::binding {

// Throws ValueError with the names that are allowed.
Format format_named(const std::string& name);
std::string name_of(const Format& format);

}  // namespace ktbench::binding
