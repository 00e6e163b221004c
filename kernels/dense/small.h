// Operations between a decode step's large products, so small that the call dominates: plain loops for one thread, on
// arrays without padding.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/layout.h"

namespace ktbench {

// out = a + b, rounded to nearest even; out may be a or b.
void add(const bf16* a, const bf16* b, std::size_t count, bf16* out);

struct RowsTaken {
  const std::byte* table;  // [rows, row_bytes]
  std::int64_t rows;
  std::size_t row_bytes;
  const std::int64_t* ids;  // [tokens]
  std::int64_t tokens;
  std::byte* out;  // [tokens, row_bytes]
};

// out[t] = table[ids[t]]. Throws std::out_of_range for an id without a row; nothing is written then.
void take_rows(const RowsTaken& call);

}  // namespace ktbench
