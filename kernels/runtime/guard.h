// Pages that nothing may write.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ktbench {

// From now on a write to the whole pages of `bytes` from `begin` on ends the process with exit code 1 and a line on
// stderr that says so; other faults keep what they did before. Throws std::invalid_argument for what is not whole pages,
// std::system_error where the kernel refuses, std::length_error for the 65,537th range.
void guard_pages(std::uintptr_t begin, std::size_t bytes);

}  // namespace ktbench
