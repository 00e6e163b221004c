// AMX BF16: 32 rows x 2 strips of sums in tiles 0..3, A in 4 and 5, B in 6 and 7. Packed weight tiles are B operands as
// they lie in memory; activations are A operands as rows.
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
constexpr std::size_t tile_row_bytes = 64;

struct Operands {
  const bf16* x;
  const bf16* w0;
  const bf16* w1;
  std::size_t x_stride_bytes;
  std::size_t lower;  // elements from a row to the one 16 below
  int tiles;
};

Operands operands(const Rows& x, const Strips& weights) {
  const bf16* second = strips_from(weights, 1, 1).data;
  return {x.data, weights.data, second, x.stride * sizeof(bf16), tile_rows * x.stride, weights.tiles};
}

void multiply_16(const Operands& o, float* c, int c_stride) {
  tile_zero<0>(), tile_zero<1>();
  for (int t = 0; t < o.tiles; ++t) {
    tile_load<4>(o.x + t * tile_depth, o.x_stride_bytes);
    tile_load<6>(o.w0 + t * tile_elements, tile_row_bytes);
    tile_dot<0, 4, 6>();
    tile_load<7>(o.w1 + t * tile_elements, tile_row_bytes);
    tile_dot<1, 4, 7>();
  }
  tile_store<0>(c, c_stride * sizeof(float));
  tile_store<1>(c + strip_rows, c_stride * sizeof(float));
}

void multiply_32(const Operands& o, float* c, int c_stride) {
  tile_zero<0>(), tile_zero<1>(), tile_zero<2>(), tile_zero<3>();
  for (int t = 0; t < o.tiles; ++t) {
    tile_load<4>(o.x + t * tile_depth, o.x_stride_bytes);
    tile_load<6>(o.w0 + t * tile_elements, tile_row_bytes);
    tile_load<7>(o.w1 + t * tile_elements, tile_row_bytes);
    tile_load<5>(o.x + o.lower + t * tile_depth, o.x_stride_bytes);
    tile_dot<0, 4, 6>(), tile_dot<1, 4, 7>();
    tile_dot<2, 5, 6>(), tile_dot<3, 5, 7>();
  }
  tile_store<0>(c, c_stride * sizeof(float));
  tile_store<1>(c + strip_rows, c_stride * sizeof(float));
  tile_store<2>(c + tile_rows * c_stride, c_stride * sizeof(float));
  tile_store<3>(c + tile_rows * c_stride + strip_rows, c_stride * sizeof(float));
}

struct Block {
  static constexpr int rows = 32;
  static constexpr int strips = 2;
  static int height(int) { return rows; }
  static void multiply(const Rows& x, const Strips& weights, float* c, int c_stride) {
    const Operands o = operands(x, weights);
    x.count > tile_rows ? multiply_32(o, c, c_stride) : multiply_16(o, c, c_stride);
  }
};

// Tile multiplies of one job: two per 16 rows of activations, tile of k and pair of strips.
std::uint64_t tile_dots(const Rows& x, const Strips& weights) {
  const int row_tiles = (x.count + tile_rows - 1) / tile_rows;
  return 2ull * row_tiles * weights.tiles * (weights.count / 2);
}

void gate_up_amx(const GateUp& job, Counters& counters) {
  gate_up<Block>(job);
  counters.*tiles_counter += tile_dots(job.x, job.weights);
}

void down_amx(const Down& job, Counters& counters) {
  down<Block>(job);
  counters.*tiles_counter += tile_dots(job.h, job.weights);
}

}  // namespace

const Kernels KTBENCH_AMX_KERNELS{tiles_enter, tiles_leave, gate_up_amx, down_amx, round_all};

}  // namespace ktbench
