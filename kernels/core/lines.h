// Register blocks over lines of weights, for any vector ISA. A policy P names the vectors:
//   Vector, Sum       an operand, and a register of sums
//   parts             vectors per line: 1 of 64 bytes or 2 of 32
//   block_rows        rows of a block, so that its sums and operands fit the registers
//   halves, step      operands per line, and bytes of an activation row per line
//   load<half>(part)  the operand out of a part of a line
//   broadcast<half>(row)  the activations it is multiplied with
//   add(sum, a, w)    sum += a * w, in assembly that keeps the sum in its register: gcc 12 lets products overwrite the
//                     activation instead, and copies or spills sums to make up for it
//   sum(a, b), get(c), put(sum, c)
//   store(sum, part, scales, row_scale, c)  what the sum stands for, as floats
#pragma once

#include "core/blocked.h"

namespace ktbench {
namespace {

#ifdef __x86_64__
#define KTBENCH_VECTOR_REGISTER "+v"
#else
#define KTBENCH_VECTOR_REGISTER "+w"  // aarch64
#endif

// Without this gcc 12 spills sums to memory if there are many.
template <class Sum, int n>
inline void keep_in_registers(Sum (&sums)[n]) {
#pragma GCC unroll 32
  for (int i = 0; i < n; ++i) asm volatile("" : KTBENCH_VECTOR_REGISTER(sums[i]));
}

template <class Sum, int n>
inline void clear(Sum (&sums)[n]) {
#pragma GCC unroll 32
  for (int i = 0; i < n; ++i) sums[i] = Sum{};
}

inline const StripScales* scales_of(const Strips& w, int strip) {
  return reinterpret_cast<const StripScales*>(w.data + strip * w.bytes);
}

inline const std::byte* lines_of(const Strips& w) { return w.data + w.format.head_bytes(); }

template <class P>
constexpr int part_bytes = line_bytes / P::parts;

template <class P>
constexpr int part_rows = strip_rows / P::parts;

// Addresses of up to 24 rows in few registers: an x86 address is a base and an index times 1, 2, 4 or 8. Otherwise gcc
// keeps a pointer to each row in memory and reloads it with every use.
template <int rows>
struct RowPointers {
  const std::byte* base[(rows + 7) / 8];
  std::size_t once, thrice, five_times, seven_times;

  RowPointers(const std::byte* first, std::size_t stride)
      : once(stride), thrice(3 * stride), five_times(5 * stride), seven_times(7 * stride) {
    for (int i = 0; i < (rows + 7) / 8; ++i) base[i] = first + 8 * i * stride;
    asm("" : "+r"(once), "+r"(thrice), "+r"(five_times), "+r"(seven_times));
  }
  const std::byte* operator[](int r) const {
    const std::byte* b = base[r / 8];
    switch (r % 8) {
      case 0: return b;
      case 1: return b + once;
      case 2: return b + 2 * once;
      case 3: return b + thrice;
      case 4: return b + 4 * once;
      case 5: return b + five_times;
      case 6: return b + 2 * thrice;
      default: return b + seven_times;
    }
  }
  void advance(int bytes) {
    for (const std::byte*& b : base) b += bytes;
  }
};

// Adds to the sums from `first` on.
template <class P, int half, int rows, int strips, int n>
inline void add_products(typename P::Sum (&sums)[n], const std::byte* w, std::size_t strip_bytes,
                         const RowPointers<rows>& row, int at = 0, int first = 0) {
  typename P::Vector operand[strips * P::parts];
#pragma GCC unroll 8
  for (int i = 0; i < strips * P::parts; ++i)
    operand[i] = P::template load<half>(w + i / P::parts * strip_bytes + i % P::parts * part_bytes<P>);
  keep_in_registers(operand);  // or gcc loads them anew for every row
#pragma GCC unroll 24
  for (int r = 0; r < rows; ++r) {
    const auto a = P::template broadcast<half>(row[r] + at);
#pragma GCC unroll 8
    for (int i = 0; i < strips * P::parts; ++i) P::add(sums[first + r * strips * P::parts + i], a, operand[i]);
  }
  keep_in_registers(sums);
}

// Some lines of several strips, in L1 or near it, which are multiplied with many rows block by block.
struct Panel {
  const std::byte* lines;
  std::size_t strip_bytes;
  int count;  // lines of each strip
};

// Lines per iteration of a panel's loops, and lines with which a part of the following weights is prefetched.
constexpr int turn_lines = 16, fetch_lines = 2;

// Weights to prefetch into L2 meanwhile, a line of each strip in turn: the hardware prefetcher detects several streams
// sooner than one. Many are prefetched evenly along the lines of the panel, since a burst waits for the core's line
// fill buffers; with few this would cost more than it gains. A thread of Granite Rapids, int8, 16, 24, 32 and 64 rows:
// 0.48, 0.58, 0.60 and 0.65 TOPS; evenly, one strip after the other, 0.38, 0.48, 0.58 and 0.66, in one burst per
// iteration 0.33, 0.43, 0.51 and 0.64.
class Prefetch {
 public:
  // As much as `w`, in this many iterations.
  Prefetch(const std::byte* from, const Strips& w, int turns)
      : next_(from), strip_bytes_(w.bytes), end_(w.count * w.bytes),
        per_turn_(static_cast<unsigned>(end_ / line_bytes / turns) + 1) {}

  bool many() const { return per_turn_ >= parts; }

  void fetch_turn() { fetch_next(per_turn_); }

  // Part `n` of an iteration's.
  void fetch_part(unsigned n) { fetch_next((per_turn_ + n) / parts); }

 private:
  static constexpr unsigned parts = turn_lines / fetch_lines;

  void fetch_next(unsigned count) {
    for (; count > 0; --count) {
      __builtin_prefetch(next_ + at_, 0, 2);
      at_ += strip_bytes_;
      if (at_ == end_) at_ = 0, next_ += line_bytes;
    }
  }

  const std::byte* next_;
  std::size_t strip_bytes_, end_, at_ = 0;
  unsigned per_turn_;
};

// Adds the products of `rows` rows from `x` on to c, or initialises c with them. c holds sums in P's form.
template <class P, int rows, int strips, int c_stride>
void block(const Panel& w, const std::byte* x, std::size_t stride, Prefetch& ahead, bool begins, float* c) {
  typename P::Sum sums[rows * strips * P::parts];
  constexpr int per_row = strips * P::parts;
  if (begins) {
    clear(sums);
  } else {
#pragma GCC unroll 32
    for (int i = 0; i < rows * per_row; ++i) sums[i] = P::get(c + i / per_row * c_stride + i % per_row * part_rows<P>);
  }
  const std::byte* line = w.lines;
  Prefetch following = ahead;
  RowPointers<rows> row(x, stride);
  const auto pass = [&]<bool evenly>() __attribute__((always_inline)) {
    constexpr int unrolled = evenly ? turn_lines : 4;
    for (int i = 0; i < w.count; i += turn_lines) {
      if constexpr (!evenly) following.fetch_turn();
#pragma GCC unroll 6
      for (int r = 0; r < rows; ++r) __builtin_prefetch(row[r] + rows * stride, 0, 3);  // of the block that follows
      for (int turn = 0; turn < turn_lines; turn += unrolled)
#pragma GCC unroll 16
        for (int n = 0; n < unrolled; ++n, line += line_bytes, row.advance(P::step)) {
          if (evenly && n % fetch_lines == 0) following.fetch_part(n / fetch_lines);
          add_products<P, 0, rows, strips>(sums, line, w.strip_bytes, row);
          if constexpr (P::halves == 2) add_products<P, 1, rows, strips>(sums, line, w.strip_bytes, row);
        }
    }
  };
  following.many() ? pass.template operator()<true>() : pass.template operator()<false>();
  ahead = following;
#pragma GCC unroll 32
  for (int i = 0; i < rows * per_row; ++i) P::put(sums[i], c + i / per_row * c_stride + i % per_row * part_rows<P>);
}

// Prefetches for few rows, with `strips` streams of weights side by side: near lines into L1, and lines more than a
// page ahead into L2, since the hardware prefetcher stops at a page's end; past the end, the beginnings of the
// following strips. One token on Granite Rapids, int8: 27 GB/s without, 29 with either, 31 with both, 32 with a near
// one of 1,024 bytes instead of 512.
template <int strips>
class StreamPrefetch {
 public:
  static constexpr std::ptrdiff_t near = 1024, far = 4096;

  explicit StreamPrefetch(const Strips& w)
      : bytes_(w.bytes), turn_(w.data + w.bytes - far), shift_(w.following - w.data - static_cast<std::ptrdiff_t>(w.bytes)) {}

  void ahead_of(const std::byte* line) const {
    const std::byte* distant = line + far + (line < turn_ ? 0 : shift_);
#pragma GCC unroll 2
    for (int s = 0; s < strips; ++s) {
      __builtin_prefetch(line + s * bytes_ + near, 0, 3);
      __builtin_prefetch(distant + s * bytes_, 0, 2);
    }
  }

 private:
  std::size_t bytes_;
  const std::byte* turn_;
  std::ptrdiff_t shift_;
};

constexpr int c_stride = 2 * strip_rows;  // of what streams multiply into

// Few rows: `strips` strips at a time, each a single stream of weights, sums split over k to hide the latency of the
// dot product. Flat, or gcc 12 calls RowPointers for each row of six to ten (Granite Rapids, bf16 by FMA, eight and ten
// rows: 0.19 and 0.18 TFLOPS with calls, 0.22 and 0.25 without).
template <class P, int rows, int strips, int split, bool fetching>
[[gnu::flatten]] void stream(const Rows& x, const Strips& w, float* c) {
    constexpr int step = split > 2 ? split : 2;  // lines per iteration
  constexpr int per_row = strips * P::parts, apart = rows * per_row;
  typename P::Sum sums[split * apart];
  clear(sums);
  const std::byte* line = lines_of(w);
  RowPointers<rows> row(x.data, x.stride);
  [[maybe_unused]] const StreamPrefetch<strips> fetch(w);
  for (int i = w.depth / w.format.line_depth(); i > 0; i -= step, line += step * line_bytes, row.advance(step * P::step)) {
#pragma GCC unroll 4
    for (int j = 0; j < step; ++j) {
      if constexpr (fetching) fetch.ahead_of(line + j * line_bytes);
      add_products<P, 0, rows, strips>(sums, line + j * line_bytes, w.bytes, row, j * P::step, j % split * apart);
      if constexpr (P::halves == 2)
        add_products<P, 1, rows, strips>(sums, line + j * line_bytes, w.bytes, row, j * P::step,
                                         (j + split / 2) % split * apart);
    }
  }
#pragma GCC unroll 24
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 4
    for (int n = 0; n < per_row; ++n) {
      typename P::Sum sum = sums[r * per_row + n];
      for (int i = 1; i < split; ++i) sum = P::sum(sum, sums[i * apart + r * per_row + n]);
      P::store(sum, n % P::parts, scales_of(w, n / P::parts), row_scale(x, r), c + r * c_stride + n * part_rows<P>);
    }
}

}  // namespace
}  // namespace ktbench
