// The loops around a register block, the same for every vector ISA, with the epilogue as soon as products are complete.
// Few rows: the weights stream from memory, and each strip or pair of strips is multiplied with all rows. Many rows: a
// group of strips is multiplied with them one piece of k at a time; the piece stays in L1 from block to block of rows.
#pragma once

#include "core/activations.h"

namespace ktbench {
namespace {

inline int smaller(int a, int b) { return a < b ? a : b; }

inline Strips strips_from(const Strips& all, int first, int at_most) {
  const int count = smaller(at_most, all.count - first);
  const std::byte* data = all.data + first * all.bytes;
  const std::byte* following = first + count < all.count ? data + count * all.bytes : all.following;
  return {data, count, all.depth, all.bytes, all.format, all.crossover, following};
}

inline Rows rows_from(const Rows& all, int first, int at_most) {
  return {all.data + first * all.stride, all.stride, all.scale_at, smaller(at_most, all.count - first)};
}

// Blocks of nearly equal height: 8 rows under a limit of 6 become 4 + 4, not 6 + 2.
inline int even_height(int rows, int limit) {
  const int blocks = (rows + limit - 1) / limit;
  return blocks ? (rows + blocks - 1) / blocks : 1;
}

// c[row][column] of one group of strips: [rows, 16 x strips].
struct Products {
  const float* c;
  int stride;
  int row, rows;
  int strip, strips;
};

template <class Loop>
void gate_up(const GateUp& job) {
  static_assert(Loop::strips % 2 == 0, "gate and up strips come in pairs");
  Loop::run(job.x, job.weights, job.scratch, [&](const Products& p) {
    activate(p.c, p.stride, p.rows, p.strips, job, p.row, p.strip);
  });
}

template <class Loop>
void down(const Down& job) {
  Loop::run(job.h, job.weights, job.scratch, [&](const Products& p) {
    scatter(p.c, p.stride, p.rows, p.strips * strip_rows, job, p.row, job.out + p.strip * strip_rows);
  });
}

}  // namespace
}  // namespace ktbench
