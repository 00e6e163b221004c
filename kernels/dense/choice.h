// Which ISA's kernels the small operations of a decode step run on: the one named, or the fastest that is granted.
#pragma once

#include <optional>
#include <string>

#include "dense/attend.h"
#include "dense/rows.h"

namespace ktbench {

// Throws std::runtime_error with the reason for an ISA that is not granted, std::invalid_argument for one without.
const RowKernels& row_kernels(const std::optional<std::string>& isa);
const AttentionKernels& attention_kernels(const std::optional<std::string>& isa);

}  // namespace ktbench
