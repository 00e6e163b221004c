// The loops around a register block, the same for every vector ISA: strips outside, rows of activations inside, and
// the epilogue as soon as a block of products is complete. `Block` says how many rows and strips it takes at most and
// multiplies them into c, whose rows are `c_stride` floats apart. Meanwhile it may fetch two of the strips that come
// next: they follow in memory, also from one task to the next.
#pragma once

#include "core/epilogue.h"

namespace ktbench {
namespace {

inline int smaller(int a, int b) { return a < b ? a : b; }

inline Strips strips_from(const Strips& all, int first, int at_most) {
  const std::size_t offset = static_cast<std::size_t>(first) * all.tiles * tile_elements;
  return {all.data + offset, smaller(at_most, all.count - first), all.tiles};
}

inline Rows rows_from(const Rows& all, int first, int at_most) {
  return {all.data + first * all.stride, all.stride, smaller(at_most, all.count - first)};
}

// Blocks of nearly equal height: 8 rows under a limit of 6 become 4 + 4, not 6 + 2.
inline int even_height(int rows, int limit) {
  const int blocks = (rows + limit - 1) / limit;
  return blocks ? (rows + blocks - 1) / blocks : 1;
}

// The first block of rows fetches the first two strips after these, the second block the two after them.
inline const bf16* strips_ahead(const Strips& current, int turn) {
  return turn > 1 ? nullptr : current.data + (current.count + 2l * turn) * current.tiles * tile_elements;
}

template <class Block, class Epilogue>
void for_blocks(const Rows& x, const Strips& weights, Epilogue epilogue) {
  alignas(64) float c[Block::rows * Block::strips * strip_rows];
  constexpr int c_stride = Block::strips * strip_rows;
  const int height = Block::height(x.count);
  for (int s = 0; s < weights.count; s += Block::strips)
    for (int r = 0; r < x.count; r += height) {
      const Strips w = strips_from(weights, s, Block::strips);
      const Rows rows = rows_from(x, r, height);
      Block::multiply(rows, w, strips_ahead(w, r / height), c, c_stride);
      epilogue(c, c_stride, r, rows.count, s, w.count);
    }
}

template <class Block>
void gate_up(const GateUp& job) {
  static_assert(Block::strips % 2 == 0, "gate and up strips come in pairs");
  for_blocks<Block>(job.x, job.weights, [&](const float* c, int c_stride, int row, int rows, int strip, int strips) {
    bf16* h = job.h + row * job.h_stride + strip / 2 * strip_rows;
    for (int pair = 0; pair < strips / 2; ++pair)
      swiglu(c + pair * 2 * strip_rows, c_stride, rows, h + pair * strip_rows, job.h_stride);
  });
}

template <class Block>
void down(const Down& job) {
  for_blocks<Block>(job.h, job.weights, [&](const float* c, int c_stride, int row, int rows, int strip, int strips) {
    scatter(c, c_stride, rows, strips * strip_rows, job, row, job.out + strip * strip_rows);
  });
}

}  // namespace
}  // namespace ktbench
