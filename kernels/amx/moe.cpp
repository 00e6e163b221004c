// AMX BF16: 32 rows x 2 strips of sums in tiles 0..3, A in 4 and 5, B in 6 and 7. Packed weight tiles are B operands as
// they lie in memory; activations are A operands as rows. Two tile loads in four may come from L2 without slowing the
// multiplies, three may not: hence the blocking along k, which keeps the weights of a pair in L1.
#include "amx/tiles.h"
#include "core/blocked.h"

#ifdef KTBENCH_TILES_EMULATED
#define KTBENCH_AMX_KERNELS amx_emulated_kernels
#else
#define KTBENCH_AMX_KERNELS amx_kernels
#endif

namespace ktbench {
namespace {

constexpr int tile_rows = 16;
constexpr int block_rows = 32;
constexpr int chunk_rows = 256;  // sums of a chunk x a group stay in L2: 256 KiB
constexpr int group_pairs = 8;
constexpr int pair_columns = 2 * strip_rows;
constexpr std::size_t tile_row_bytes = 64;
constexpr int c_stride = pair_columns;
constexpr std::size_t c_stride_bytes = c_stride * sizeof(float);
constexpr int line_elements = 64 / sizeof(bf16);

static_assert(chunk_rows * group_pairs * pair_columns == scratch_floats);

// One 32-row block of a pair of strips, over `tiles` tiles of k.
struct Operands {
  const bf16* x;
  std::size_t x_stride_bytes;
  const bf16* lower;  // the row 16 below x
  const bf16* w0;
  const bf16* w1;
  int tiles;
};

void start_sums(bool first_of_k, const float* c) {
  if (first_of_k) {
    tile_zero<0>(), tile_zero<1>(), tile_zero<2>(), tile_zero<3>();
    return;
  }
  tile_load<0>(c, c_stride_bytes), tile_load<1>(c + strip_rows, c_stride_bytes);
  tile_load<2>(c + tile_rows * c_stride, c_stride_bytes);
  tile_load<3>(c + tile_rows * c_stride + strip_rows, c_stride_bytes);
}

void store_sums(float* c) {
  tile_store<0>(c, c_stride_bytes), tile_store<1>(c + strip_rows, c_stride_bytes);
  tile_store<2>(c + tile_rows * c_stride, c_stride_bytes);
  tile_store<3>(c + tile_rows * c_stride + strip_rows, c_stride_bytes);
}

// Weights to bring into L2 meanwhile: so many lines with every tile of k. More of them, or a variable number, cost more
// than they bring.
constexpr int lines_ahead = 8;

inline void prefetch(const bf16* line) {
#pragma GCC unroll 8
  for (int i = 0; i < lines_ahead; ++i) __builtin_prefetch(line + i * line_elements, 0, 2);
}

// Activations stream past the pair's weights, which stay in L1 from one block of rows to the next.
template <bool fetching>
void multiply_32(const Operands& o, const bf16* ahead, bool first_of_k, float* c) {
  start_sums(first_of_k, c);
  for (int t = 0; t < o.tiles; ++t) {
    tile_load_streaming<4>(o.x + t * tile_depth, o.x_stride_bytes);
    tile_load<6>(o.w0 + t * tile_elements, tile_row_bytes);
    tile_load<7>(o.w1 + t * tile_elements, tile_row_bytes);
    tile_load_streaming<5>(o.lower + t * tile_depth, o.x_stride_bytes);
    tile_dot<0, 4, 6>(), tile_dot<1, 4, 7>();
    if constexpr (fetching) prefetch(ahead + t * lines_ahead * line_elements);
    tile_dot<2, 5, 6>(), tile_dot<3, 5, 7>();
  }
  store_sums(c);
}

void multiply_16(const Operands& o, bool first_of_k, float* c) {
  tile_zero<0>(), tile_zero<1>();
  if (!first_of_k) tile_load<0>(c, c_stride_bytes), tile_load<1>(c + strip_rows, c_stride_bytes);
  for (int t = 0; t < o.tiles; ++t) {
    tile_load<4>(o.x + t * tile_depth, o.x_stride_bytes);
    tile_load<6>(o.w0 + t * tile_elements, tile_row_bytes);
    tile_dot<0, 4, 6>();
    tile_load<7>(o.w1 + t * tile_elements, tile_row_bytes);
    tile_dot<1, 4, 7>();
  }
  tile_store<0>(c, c_stride_bytes), tile_store<1>(c + strip_rows, c_stride_bytes);
}

// Tiles of k at a time: all of them for one block of rows, else as many as leave room in L1.
int depth_at_a_time(int tiles, int rows) { return rows <= block_rows || tiles <= 24 ? tiles : 8; }

// x (at most chunk_rows) times one pair, `tiles` tiles of k from `tile` on. While several blocks of rows pass the same
// weights, the first four fetch those that come next, half a strip each.
void multiply_pair(const Rows& x, const bf16* pair, const bf16* next, int all_tiles, int tile, int tiles, float* c) {
  const std::size_t strip_elements = static_cast<std::size_t>(all_tiles) * tile_elements;
  const int blocks = (x.count + block_rows - 1) / block_rows;
  for (int b = 0; b < blocks; ++b) {
    const bf16* row = x.data + b * block_rows * x.stride + tile * tile_depth;
    const Operands o{row, x.stride * sizeof(bf16), row + tile_rows * x.stride, pair, pair + strip_elements, tiles};
    const bf16* ahead = next + b / 2 * strip_elements + b % 2 * tiles * tile_elements / 2;
    float* sums = c + b * block_rows * c_stride;
    if (x.count - b * block_rows <= tile_rows)
      multiply_16(o, tile == 0, sums);
    else if (blocks > 1 && b < 4)
      multiply_32<true>(o, ahead, tile == 0, sums);
    else
      multiply_32<false>(o, ahead, tile == 0, sums);
  }
}

// x (at most chunk_rows) times a group of pairs; sums of pair p begin at c + p * chunk_rows * c_stride.
void multiply_group(const Rows& x, const Strips& weights, float* c) {
  const std::size_t pair_elements = 2ul * weights.tiles * tile_elements;
  const int pairs = weights.count / 2;
  const int depth = depth_at_a_time(weights.tiles, x.count);
  for (int t = 0; t < weights.tiles; t += depth) {
    const bf16* at = weights.data + t * tile_elements;
    const bf16* next_depth = t + depth < weights.tiles ? at + depth * tile_elements : weights.data + pairs * pair_elements;
    for (int p = 0; p < pairs; ++p, at += pair_elements) {
      const bf16* next = p + 1 < pairs ? at + pair_elements : next_depth;
      multiply_pair(x, at, next, weights.tiles, t, smaller(depth, weights.tiles - t), c + p * chunk_rows * c_stride);
    }
  }
}

template <class Epilogue>
void for_groups(const Rows& x, const Strips& weights, float* c, Epilogue epilogue) {
  for (int r = 0; r < x.count; r += chunk_rows)
    for (int s = 0; s < weights.count; s += 2 * group_pairs) {
      const Rows rows = rows_from(x, r, chunk_rows);
      const Strips group = strips_from(weights, s, 2 * group_pairs);
      multiply_group(rows, group, c);
      for (int p = 0; p < group.count / 2; ++p) epilogue(c + p * chunk_rows * c_stride, r, rows.count, s + 2 * p);
    }
}

// Tile multiplies of one job: two per 16 rows of activations, tile of k and pair of strips.
std::uint64_t tile_dots(const Rows& x, const Strips& weights) {
  const int row_tiles = (x.count + tile_rows - 1) / tile_rows;
  return 2ull * row_tiles * weights.tiles * (weights.count / 2);
}

void gate_up_amx(const GateUp& job, Counters& counters) {
  for_groups(job.x, job.weights, job.scratch, [&](const float* c, int row, int rows, int strip) {
    swiglu(c, c_stride, rows, job.h + row * job.h_stride + strip / 2 * strip_rows, job.h_stride);
  });
  counters.*tiles_counter += tile_dots(job.x, job.weights);
}

void down_amx(const Down& job, Counters& counters) {
  for_groups(job.h, job.weights, job.scratch, [&](const float* c, int row, int rows, int strip) {
    scatter(c, c_stride, rows, pair_columns, job, row, job.out + strip * strip_rows);
  });
  counters.*tiles_counter += tile_dots(job.h, job.weights);
}

}  // namespace

const Kernels KTBENCH_AMX_KERNELS{tiles_enter, tiles_leave, gate_up_amx, down_amx, round_all};

}  // namespace ktbench
