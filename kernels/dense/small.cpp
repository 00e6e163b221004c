#include "dense/small.h"

#include <cstring>
#include <stdexcept>
#include <string>

#include "dense/vectors.h"

namespace ktbench {

void add(const bf16* a, const bf16* b, std::size_t count, bf16* out) {
  const std::size_t whole = count / lane_pairs * lane_pairs;
  for (std::size_t i = 0; i < whole; i += lane_pairs) {
    const Words x = load<Words>(a + i), y = load<Words>(b + i);
    store(pairs_of(even_of(x) + even_of(y), odd_of(x) + odd_of(y)), out + i);
  }
  for (std::size_t i = whole; i < count; ++i) out[i] = to_bf16(widen(a[i]) + widen(b[i]));
}

// Checked at each reading: another thread may write to the ids.
static std::int64_t row_at(const RowsTaken& call, std::int64_t t) {
  const std::int64_t id = const_cast<const volatile std::int64_t&>(call.ids[t]);
  if (id < 0 || id >= call.rows)
    throw std::out_of_range("ids[" + std::to_string(t) + "]=" + std::to_string(id) + " is none of " +
                            std::to_string(call.rows) + " rows");
  return id;
}

void take_rows(const RowsTaken& call) {
  for (std::int64_t t = 0; t < call.tokens; ++t) row_at(call, t);
  for (std::int64_t t = 0; t < call.tokens; ++t)
    std::memcpy(call.out + t * call.row_bytes, call.table + row_at(call, t) * call.row_bytes, call.row_bytes);
}

}  // namespace ktbench
