// The operations between a decode step's projections and its attention.
#pragma once

#include <cstdint>

#include "dense/attend.h"
#include "dense/rows.h"
#include "runtime/team.h"

namespace ktbench {

template <class T>
struct RowsOf {
  T* data;
  std::size_t stride;  // elements

  T* operator[](std::size_t row) const { return data + row * stride; }
};

// [sequences, heads, positions, size], contiguous along the last dimension.
template <class T>
struct CacheOf {
  T* data;
  std::size_t sequence_stride, head_stride, stride;  // elements

  T* at(std::size_t sequence, std::size_t head, std::size_t position) const {
    return data + sequence * sequence_stride + head * head_stride + position * stride;
  }
};

// out[t] = the norm of x[t], both [rows, count]. With a team its threads share many rows.
void rms_norm(RowsOf<const bf16> x, int rows, int count, const Norm& norm, RowsOf<bf16> out, const RowKernels& kernels,
              Team* team);

// One token of each sequence: query and key heads are normalised and rotated, keys and values are written to the cache
// at the sequence's position. In a paged cache, the first dimension is pages instead of sequences.
struct HeadsCall {
  RowsOf<const bf16> qkv;  // [sequences, (query heads + 2 key heads) * size]
  int sequences, query_heads, key_heads, size;
  Norm q_norm, k_norm;
  RowsOf<const bf16> cos, sin;  // [sequences, rotated]
  int rotated;
  const std::int64_t* position;
  const std::int64_t* page;  // of each token, or null
  RowsOf<bf16> q_out;  // [sequences, query heads * size]
  CacheOf<bf16> keys, values;
};

void prepare_heads(const HeadsCall& call, const RowKernels& kernels, Team* team);

// out[b, h] = W[h] x[b, h], or transposed W[h]^T x[b, h]: every head has its own matrix [rows, size].
struct HeadsProduct {
  int sequences, heads, rows, size;
  bool transposed;
  CacheOf<const bf16> x;        // [sequences, heads, 1, size], transposed [..., rows]
  CacheOf<const bf16> weights;  // [1, heads, rows, size]
  CacheOf<bf16> out;            // [sequences, heads, 1, rows], transposed [..., size]

  int out_size() const { return transposed ? size : rows; }
};

void multiply_heads(const HeadsProduct& call, const AttentionKernels& kernels, Team& team);

}  // namespace ktbench
