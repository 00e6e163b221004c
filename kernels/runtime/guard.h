// Write-protected pages.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ktbench {

// From now on a write to the whole pages of `bytes` from `begin` on ends the process with exit code 1 and a line on
// stderr; other faults are handled as before. Throws std::invalid_argument unless these are whole pages,
// std::system_error if the kernel refuses, std::length_error for the 65,537th range.
void guard_pages(std::uintptr_t begin, std::size_t bytes);

}  // namespace ktbench
