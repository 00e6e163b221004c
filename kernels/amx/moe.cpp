// AMX BF16 and INT8: 32 rows x 2 strips of sums in tiles 0..3, A in 4 and 5, B in 6 and 7. Packed lines are B operands
// as they lie in memory, activations are A operands as rows; int4 is unpacked to int8 a piece at a time. Two tile loads
// in four may come from L2 without slowing the multiplies, three may not: hence the blocking along k, which keeps the
// weights of a pair in L1.
#include "amx/tiles.h"
#include "core/unpack.h"

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
constexpr int c_stride = 2 * strip_rows;
constexpr std::size_t c_stride_bytes = c_stride * sizeof(float);
constexpr int pair_sums = chunk_rows * c_stride;
constexpr std::size_t sums_bytes = group_pairs * pair_sums * sizeof(float);
constexpr int piece_tiles = 8;  // of k at a time, so that a pair's weights leave room in L1

// One 32-row block of a pair of strips, over `tiles` tiles of k.
struct Operands {
  const std::byte* x;
  std::size_t x_stride;
  const std::byte* lower;  // the row 16 below x
  const std::byte* w0;
  const std::byte* w1;
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

inline void prefetch(const std::byte* line) {
#pragma GCC unroll 8
  for (int i = 0; i < lines_ahead; ++i) __builtin_prefetch(line + i * line_bytes, 0, 2);
}

// Activations stream past the pair's weights, which stay in L1 from one block of rows to the next.
template <class Dot, bool fetching>
void multiply_32(const Operands& o, const std::byte* ahead, bool first_of_k, float* c) {
  start_sums(first_of_k, c);
  for (int t = 0; t < o.tiles; ++t) {
    tile_load_streaming<4>(o.x + t * line_bytes, o.x_stride);
    tile_load<6>(o.w0 + t * tile_bytes, line_bytes);
    tile_load<7>(o.w1 + t * tile_bytes, line_bytes);
    tile_load_streaming<5>(o.lower + t * line_bytes, o.x_stride);
    Dot::template add<0, 4, 6>(), Dot::template add<1, 4, 7>();
    if constexpr (fetching) prefetch(ahead + t * lines_ahead * line_bytes);
    Dot::template add<2, 5, 6>(), Dot::template add<3, 5, 7>();
  }
  store_sums(c);
}

template <class Dot>
void multiply_16(const Operands& o, bool first_of_k, float* c) {
  tile_zero<0>(), tile_zero<1>();
  if (!first_of_k) tile_load<0>(c, c_stride_bytes), tile_load<1>(c + strip_rows, c_stride_bytes);
  for (int t = 0; t < o.tiles; ++t) {
    tile_load<4>(o.x + t * line_bytes, o.x_stride);
    tile_load<6>(o.w0 + t * tile_bytes, line_bytes);
    Dot::template add<0, 4, 6>();
    tile_load<7>(o.w1 + t * tile_bytes, line_bytes);
    Dot::template add<1, 4, 7>();
  }
  tile_store<0>(c, c_stride_bytes), tile_store<1>(c + strip_rows, c_stride_bytes);
}

// How the weights of a format become B operands.
struct Bf16 {
  using Dot = DotBf16;
  static constexpr Activation activation = Activation::bf16;
  static constexpr int fetching_blocks = 4;  // together they prefetch all of the next piece
  static int tiles_at_a_time(int tiles, int rows) { return rows <= block_rows || tiles <= 24 ? tiles : piece_tiles; }
  static std::size_t packed_bytes(const Format&, int tiles) { return static_cast<std::size_t>(tiles) * tile_bytes; }
  static Operands weights(const Strips& w, const std::byte* piece, int tiles, std::byte*) {
    return {nullptr, 0, nullptr, piece, piece + w.bytes, tiles};
  }
};

struct Int8 : Bf16 {
  using Dot = DotInt8;
  static constexpr Activation activation = Activation::u8;
};

struct Int4 : Int8 {
  static constexpr int fetching_blocks = 2;
  static int tiles_at_a_time(int, int) { return piece_tiles; }
  static std::size_t packed_bytes(const Format& format, int tiles) {
    return format.bytes_before(tiles * line_bytes / format.group);
  }
  static Operands weights(const Strips& w, const std::byte* piece, int tiles, std::byte* unpacked) {
    const int groups = tiles * line_bytes / w.format.group;
    std::byte* second = unpacked + piece_tiles * tile_bytes;
    unpack_groups(piece, groups, w.format.group / 8, unpacked);
    unpack_groups(piece + w.bytes, groups, w.format.group / 8, second);
    return {nullptr, 0, nullptr, unpacked, second, tiles};
  }
};

// x (at most chunk_rows) times one piece of a pair. While several blocks of rows pass the same weights, the first ones
// fetch those that come next, equal parts each.
template <class P>
void multiply_piece(const Rows& x, Operands o, const std::byte* next, std::size_t strip_bytes, int tile, float* c) {
  using Dot = typename P::Dot;
  constexpr int per_strip = P::fetching_blocks / 2;
  o.x_stride = x.stride;
  const int blocks = (x.count + block_rows - 1) / block_rows;
  for (int b = 0; b < blocks; ++b) {
    o.x = x.data + b * block_rows * o.x_stride + tile * line_bytes;
    o.lower = o.x + tile_rows * o.x_stride;
    const std::byte* ahead =
        next + b / per_strip * strip_bytes + b % per_strip * static_cast<std::size_t>(o.tiles) * lines_ahead * line_bytes;
    float* sums = c + b * block_rows * c_stride;
    if (x.count - b * block_rows <= tile_rows)
      multiply_16<Dot>(o, tile == 0, sums);
    else if (blocks > 1 && b < P::fetching_blocks)
      multiply_32<Dot, true>(o, ahead, tile == 0, sums);
    else
      multiply_32<Dot, false>(o, ahead, tile == 0, sums);
  }
}

int row_tiles(const Rows& x) { return static_cast<int>(x.scale_at / line_bytes); }

// x (at most chunk_rows) times a group of pairs; sums of pair p begin at c + p * pair_sums.
template <class P>
void multiply_group(const Rows& x, const Strips& w, float* c, std::byte* unpacked) {
  const int all = row_tiles(x), at_a_time = P::tiles_at_a_time(all, x.count), pairs = w.count / 2;
  const std::byte* body = w.data + w.format.head_bytes();
  for (int t = 0; t < all; t += at_a_time) {
    const int tiles = smaller(at_a_time, all - t);
    const std::size_t here = P::packed_bytes(w.format, t), following = P::packed_bytes(w.format, t + tiles);
    for (int p = 0; p < pairs; ++p) {
      const std::byte* piece = body + 2 * p * w.bytes + here;
      const std::byte* next = p + 1 < pairs ? piece + 2 * w.bytes
                              : t + tiles < all ? body + following
                                                : w.following + w.format.head_bytes();
      multiply_piece<P>(x, P::weights(w, piece, tiles, unpacked), next, w.bytes, t, c + p * pair_sums);
    }
  }
}

// Integer sums of a strip become floats where they lie.
void to_floats(const Rows& x, const std::byte* strip, float* c) {
  StripScales w;  // a copy, which cannot alias c
  __builtin_memcpy(&w, strip, sizeof w);
  for (int r = 0; r < x.count; ++r, c += c_stride) {
    const float scale = row_scale(x, r);
    for (int i = 0; i < strip_rows; ++i)
      c[i] = static_cast<float>(__builtin_bit_cast(std::int32_t, c[i]) + w.offset[i]) * (w.scale[i] * scale);
  }
}

template <class P, class Epilogue>
void for_groups(const Rows& x, const Strips& weights, std::byte* scratch, Epilogue epilogue) {
  auto* c = reinterpret_cast<float*>(scratch);
  for (int r = 0; r < x.count; r += chunk_rows)
    for (int s = 0; s < weights.count; s += 2 * group_pairs) {
      const Rows rows = rows_from(x, r, chunk_rows);
      const Strips group = strips_from(weights, s, 2 * group_pairs);
      multiply_group<P>(rows, group, c, scratch + sums_bytes);
      for (int p = 0; p < group.count / 2; ++p) {
        if (P::activation == Activation::u8)
          for (int i = 0; i < 2; ++i)
            to_floats(rows, group.data + (2 * p + i) * group.bytes, c + p * pair_sums + i * strip_rows);
        epilogue(c + p * pair_sums, r, rows.count, s + 2 * p);
      }
    }
}

// Tile multiplies of one job: two per 16 rows of activations, tile of k and pair of strips.
std::uint64_t tile_dots(const Rows& x, const Strips& weights) {
  const int row_blocks = (x.count + tile_rows - 1) / tile_rows;
  return 2ull * row_blocks * row_tiles(x) * (weights.count / 2);
}

template <class P>
void gate_up_amx(const GateUp& job, Counters& counters) {
  for_groups<P>(job.x, job.weights, job.scratch, [&](const float* c, int row, int rows, int strip) {
    activate(c, c_stride, rows, 2, job, row, strip);
  });
  counters.*tiles_counter += tile_dots(job.x, job.weights);
}

template <class P>
void down_amx(const Down& job, Counters& counters) {
  for_groups<P>(job.h, job.weights, job.scratch, [&](const float* c, int row, int rows, int strip) {
    scatter(c, c_stride, rows, c_stride, job, row, job.out + strip * strip_rows);
  });
  counters.*tiles_counter += tile_dots(job.h, job.weights);
}

template <class P>
constexpr Kernels kernels_on{P::activation, tiles_enter, tiles_leave, gate_up_amx<P>, down_amx<P>, prepare_row,
                             round_all};

// A tile spans two blocks, whose scales differ: no kernels for formats with block scales.
struct Amx {
  template <Format format>
  static consteval Kernels of() {
    if constexpr (format.scales == Scales::none) return kernels_on<Bf16>;
    else if constexpr (format == Format{Numbers::int8, Scales::row, 0}) return kernels_on<Int8>;
    else if constexpr (format.scales == Scales::group) return kernels_on<Int4>;
    else return {};
  }
};

}  // namespace

const KernelSet KTBENCH_AMX_KERNELS = kernel_set<Amx>();

}  // namespace ktbench
