#pragma once

namespace ktbench {

// SHA-256 over the kernel sources, the compiler and its flags, in hexadecimal.
const char* build_id();

}  // namespace ktbench
