// Attention of one token over positions of a cache, a group of query heads at a time: all that share a key head, so
// that each key and value is read once.
#pragma once

#include <cstddef>

#include "core/layout.h"

namespace ktbench {

constexpr int attend_chunk = 64;  // positions whose keys and values are in L1 together

// The partial result of some positions for one group: for each query head the largest score, the sum of exp(score -
// largest), and the values weighted by it. A head's floats are contiguous; the order of its sums is internal to the
// kernels.
struct PartialShape {
  int heads, value_size;

    static constexpr int sums_at = 16;  // on a separate line

  std::size_t head_floats() const { return sums_at + round_up(value_size, 32); }
  std::size_t floats() const { return heads * head_floats(); }
};

struct Attend {
  const bf16* q;  // [heads, size], rows `q_stride` apart
  std::size_t q_stride;
  const bf16* keys;  // of the first position
  std::size_t key_stride;
  const bf16* values;
  std::size_t value_stride;
  int positions;  // at least 1
  int heads, size, value_size;
  float scale;
  float* partial;
  std::byte* scratch;
};

// 64-byte aligned, undefined between jobs.
std::size_t attend_scratch_bytes(int heads, int size, int value_size);

// One key head's rows in pages: position p is row p % page_tokens of page table[p / page_tokens].
struct PagedRows {
  const bf16* data;  // of page 0
  std::size_t page_stride, stride;

  const bf16* at(const std::int32_t* table, int page_tokens, std::int64_t position) const {
    return data + table[position / page_tokens] * page_stride + position % page_tokens * stride;
  }
};

// The same as Attend, for paged positions.
struct AttendPages {
  const bf16* q;
  std::size_t q_stride;
  PagedRows keys, values;
  const std::int32_t* table;
  int page_tokens;
  std::int64_t first;
  int positions;
  int heads, size, value_size;
  float scale;
  float* partial;
  std::byte* scratch;
};

// Some neighbouring tokens of a prompt, with the query heads that share a key head: keys and values are widened once
// for all of them. Token i is at `position` + i and attends to the last `window` positions including its own.
struct AttendPrompt {
  const bf16* q;  // [tokens, heads, size]
  std::size_t q_token_stride, q_stride;
  PagedRows keys, values;
  const std::int32_t* table;
  int page_tokens;
  std::int64_t position, window;
  int tokens, heads, size, value_size;
  float scale;
  const float* sinks;  // [heads], or null
  bf16* out;           // [tokens, heads, value_size]
  std::size_t out_token_stride, out_stride;
  std::byte* scratch;  // prompt_scratch_bytes
};

std::size_t prompt_scratch_bytes(int rows, int size, int value_size);

// out = softmax-weighted values, from `count` contiguous partials, which are overwritten. A sink is one more score of
// its head, without a value. All zeros without positions.
struct Combine {
  float* partials;
  int count;
  PartialShape shape;
  const float* sinks;  // [heads], or null
  bf16* out;           // [heads, value_size]
  std::size_t out_stride;
};

// One head's matrix times a vector of each sequence: sums in float32, rounded once. The matrix is read in storage
// order, for W x by rows and for the transposed W^T x by columns.
struct HeadProduct {
  const bf16* weights;  // [rows, size], rows `weight_stride` apart
  std::size_t weight_stride;
  int rows, size;
    const bf16* x;  // for each sequence `size` numbers, transposed `rows`; `x_stride` apart
  std::size_t x_stride;
  int sequences;
    bf16* out;  // for each sequence `rows` numbers, transposed `size`; `out_stride` apart
  std::size_t out_stride;
  std::byte* scratch;  // attend_scratch_bytes(sequences, size, size)
};

struct AttentionKernels {
  void (*attend)(const Attend&);
  void (*attend_pages)(const AttendPages&);
  void (*attend_prompt)(const AttendPrompt&);
  void (*combine)(const Combine&);
  void (*multiply)(const HeadProduct&);
  void (*multiply_transposed)(const HeadProduct&);
};

extern const AttentionKernels attention_reference;
extern const AttentionKernels attention_avx2;
extern const AttentionKernels attention_avx512;
extern const AttentionKernels attention_avx512_bf16;

}  // namespace ktbench
