// AMX BF16 and INT8: blocks of 32 rows x 2 strips, sums in tiles 0..3, A in 4 and 5, B in 6 and 7. Packed lines are
// used as B operands directly, rows of activations as A operands; int4 is unpacked to int8 a piece at a time.
//
// The weights of a piece of k stay in L1 while every block of rows is multiplied with them; activations come from L2
// with a hint that keeps them out of L1. Formats with block or tile scales become bf16, a piece at a time, too. Sums stay
// in tiles for the whole piece. Adding up pieces and the epilogue are vector work, which overlaps with the
// multiplications of the next block.
//
// Measured on a Granite Rapids core, as a share of the peak rate of multiplying tiles of zeros in registers: B from L1
// with A from L1 or L2, 93 % of zeros and 75 to 79 % of any other numbers; both from L2, 76 % of zeros; with sums loaded
// from L1 and stored every eight tiles of k, 82 %; only stored, 91 %. Up to 64 vector instructions in the time of four
// multiplies cost nothing, more cost their time. While it multiplies, a core prefetches 10 to 14 GB/s of the 19 that it
// can read: every line from memory or L2 holds one of 16 line fill buffers, and activations from L2 hold them too.
#include <algorithm>
#include <type_traits>

#include "amx/tiles.h"
#include "core/wide.h"

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
constexpr int block_sums = block_rows * c_stride;
constexpr std::size_t sums_bytes = group_pairs * pair_sums * sizeof(float);
constexpr int piece_tiles = 16;    // of k at a time: the weights of a pair, 32 KiB, stay in L1
constexpr int whole_tiles = 24;    // of k that are not split
constexpr int unpacked_tiles = 8;  // of k at a time, of int4
constexpr int finished_rows = 2;   // of the previous block, with every tile of k

// One 32-row block of a pair of strips, over `tiles` tiles of k.
struct Operands {
  const std::byte* x;
  std::size_t x_stride;
  const std::byte* w0;
  const std::byte* w1;
  int tiles;
};

// Weights to prefetch into L2: with every tile of k, `lines` of each strip of a pair, `step` lines ahead; the strips
// are `apart` bytes from each other.
template <int lines, int step>
struct Prefetched {
  const std::byte* from;
  std::size_t strip_bytes, apart;

  // Half of them.
  template <int half>
  void fetch(int tile) const {
#pragma GCC unroll 16
    for (int i = half * lines / 2; i < (half + 1) * lines / 2; ++i)
#pragma GCC unroll 2
      for (int s = 0; s < 2; ++s)
        __builtin_prefetch(from + s * strip_bytes + tile * step * line_bytes + i * apart, 0, 2);
  }
};

using Nothing = Prefetched<0, 0>;

// Stores the products of 17 to 32 rows to c. `overlapped` is called with every tile of k.
template <class Dot, class Ahead, class Overlapped>
void multiply_32(const Operands& o, const Ahead& ahead, float* c, Overlapped overlapped) {
  tile_zero<0>(), tile_zero<1>(), tile_zero<2>(), tile_zero<3>();
  const std::byte* lower = o.x + tile_rows * o.x_stride;
  for (int t = 0; t < o.tiles; ++t) {
    tile_load_streaming<4>(o.x + t * line_bytes, o.x_stride);
    tile_load<6>(o.w0 + t * tile_bytes, line_bytes);
    tile_load<7>(o.w1 + t * tile_bytes, line_bytes);
    tile_load_streaming<5>(lower + t * line_bytes, o.x_stride);
    Dot::template add<0, 4, 6>(), Dot::template add<1, 4, 7>();
    ahead.template fetch<0>(t);
    Dot::template add<2, 5, 6>(), Dot::template add<3, 5, 7>();
    ahead.template fetch<1>(t);
    overlapped();
  }
  tile_store<0>(c, c_stride_bytes), tile_store<1>(c + strip_rows, c_stride_bytes);
  tile_store<2>(c + tile_rows * c_stride, c_stride_bytes);
  tile_store<3>(c + tile_rows * c_stride + strip_rows, c_stride_bytes);
}

// The same of up to 16 rows.
template <class Dot, class Ahead, class Overlapped>
void multiply_16(const Operands& o, const Ahead& ahead, float* c, Overlapped overlapped) {
  tile_zero<0>(), tile_zero<1>();
  for (int t = 0; t < o.tiles; ++t) {
    tile_load_streaming<4>(o.x + t * line_bytes, o.x_stride);
    tile_load<6>(o.w0 + t * tile_bytes, line_bytes);
    Dot::template add<0, 4, 6>();
    tile_load<7>(o.w1 + t * tile_bytes, line_bytes);
    ahead.template fetch<0>(t);
    Dot::template add<1, 4, 7>();
    ahead.template fetch<1>(t);
    overlapped();
  }
  tile_store<0>(c, c_stride_bytes), tile_store<1>(c + strip_rows, c_stride_bytes);
}

// How the weights of a format become B operands.
struct Bf16 {
  using Dot = DotBf16;
  static constexpr Activation activation = Activation::bf16;
  static constexpr int lines_per_tile = tile_lines;
  static std::size_t packed_bytes(const Format&, int tiles) { return static_cast<std::size_t>(tiles) * tile_bytes; }
  // `tiles` of the pair of strips that begins with `strip`, from `first` on.
  static Operands weights(const Strips& w, const std::byte* strip, int first, int tiles, std::byte*) {
    const std::byte* piece = strip + w.format.head_bytes() + packed_bytes(w.format, first);
    return {nullptr, 0, piece, piece + w.bytes, tiles};
  }
};

// Values with block or tile scales, as bf16: a tile of int8 would span two blocks, whose sums have different scales.
template <Format format>
struct Widened : Bf16 {
  static constexpr int tile_k = 32;
  // An estimate, for prefetching.
  static constexpr int lines_per_tile = format.has_supers() ? std::max(4, format.bits()) : tile_k / format.line_depth();
  static std::size_t packed_bytes(const Format&, int tiles) {
    return format.bytes_before(tiles * tile_k / format.group);
  }
  static Operands weights(const Strips& w, const std::byte* strip, int first, int tiles, std::byte* unpacked) {
    std::byte* second = unpacked + unpacked_tiles * tile_bytes;
    widen_strip<format>(strip, first * tile_k, tiles * tile_k, unpacked);
    widen_strip<format>(strip + w.bytes, first * tile_k, tiles * tile_k, second);
    return {nullptr, 0, unpacked, second, tiles};
  }
};

struct Int8 : Bf16 {
  using Dot = DotInt8;
  static constexpr Activation activation = Activation::u8;
};

struct Int4 : Int8 {
  static constexpr int lines_per_tile = tile_lines / 2;
  static std::size_t packed_bytes(const Format& format, int tiles) {
    return format.bytes_before(tiles * line_bytes / format.group);
  }
  static Operands weights(const Strips& w, const std::byte* strip, int first, int tiles, std::byte* unpacked) {
    const std::byte* piece = strip + w.format.head_bytes() + packed_bytes(w.format, first);
    const int groups = tiles * line_bytes / w.format.group;
    std::byte* second = unpacked + unpacked_tiles * tile_bytes;
    unpack_groups(piece, groups, w.format.group / 8, unpacked);
    unpack_groups(piece + w.bytes, groups, w.format.group / 8, second);
    return {nullptr, 0, unpacked, second, tiles};
  }
};

int row_tiles(const Rows& x) { return static_cast<int>(x.scale_at / line_bytes); }

// As few pieces of k as L1 allows, of nearly equal length; one piece if sums would cost more than weights from L2, or
// if only one block of rows uses them. A piece of int4 begins with a record, whatever its groups.
template <class P>
int tiles_at_a_time(int tiles, int rows) {
  if (P::lines_per_tile < tile_lines) return unpacked_tiles;
  if (rows <= block_rows || tiles <= whole_tiles) return tiles;
  const int pieces = (tiles + piece_tiles - 1) / piece_tiles;
  return (tiles + pieces - 1) / pieces;
}

// Converts the integer sums of a strip to floats in place. Not inlined: the many loops that finish rows would each get
// a long copy.
[[gnu::noinline]] void to_floats(const Rows& x, int row, int rows, const std::byte* strip, float* c) {
  StripScales w;  // a copy, which cannot alias c
  __builtin_memcpy(&w, strip, sizeof w);
  for (int r = row; r < row + rows; ++r, c += c_stride) {
    const float scale = row_scale(x, r);
    for (int i = 0; i < strip_rows; ++i)  // raised sums may pass 2^31 before the offset brings them back
      c[i] = static_cast<float>(static_cast<std::int32_t>(__builtin_bit_cast(std::uint32_t, c[i]) + w.offset[i])) *
             (w.scale[i] * scale);
  }
}

// to += from, where the floats may hold integer bits.
template <class Number>
void add_up(const float* from, int count, float* to) {
  for (int i = 0; i < count; ++i)
    to[i] = __builtin_bit_cast(
        float, static_cast<Number>(__builtin_bit_cast(Number, to[i]) + __builtin_bit_cast(Number, from[i])));
}

// Up to chunk_rows rows times a group of strips.
template <class P, class Epilogue>
class GroupProduct {
  using Dot = typename P::Dot;
  using Number = std::conditional_t<P::activation == Activation::u8, std::uint32_t, float>;

 public:
  GroupProduct(const Rows& x, const Strips& w, std::byte* scratch, const Epilogue& epilogue)
      : x_(x), w_(w), kept_(reinterpret_cast<float*>(scratch)), unpacked_(scratch + sums_bytes),
        fresh_(reinterpret_cast<float*>(unpacked_ + 2 * unpacked_tiles * tile_bytes)), epilogue_(epilogue) {}

  void run() {
    const int all = row_tiles(x_), at_a_time = tiles_at_a_time<P>(all, x_.count), pairs = w_.count / 2;
    const std::byte* body = w_.data + w_.format.head_bytes();
    for (int t = 0; t < all; t += at_a_time) {
      const int tiles = smaller(at_a_time, all - t);
      const std::size_t here = P::packed_bytes(w_.format, t), following = P::packed_bytes(w_.format, t + tiles);
      for (int p = 0; p < pairs; ++p) {
        const std::byte* strip = w_.data + 2 * p * w_.bytes;
        const std::byte* next = p + 1 < pairs ? body + 2 * (p + 1) * w_.bytes + here
                                : t + tiles < all ? body + following
                                                  : w_.following + w_.format.head_bytes();
        multiply_piece(P::weights(w_, strip, t, tiles, unpacked_), next, t, p, t == 0, t + tiles == all);
      }
    }
    finish(block_rows);
  }

 private:
  // The sums of a block as the tiles stored them; `row` is the next to add to those of earlier pieces, or to finish.
  struct Pending {
    float* fresh = nullptr;
    float* kept = nullptr;
    int pair = 0, row = 0, end = 0;
    bool first_of_k = false, last_of_k = false;
  };

  void multiply_piece(Operands o, const std::byte* next, int tile, int pair, bool first, bool last) {
    o.x_stride = x_.stride;
    const int blocks = (x_.count + block_rows - 1) / block_rows;
    for (int b = 0; b < blocks; ++b) {
      o.x = x_.data + b * block_rows * o.x_stride + tile * line_bytes;
      const int row = b * block_rows, rows = smaller(block_rows, x_.count - row);
      float* kept = kept_ + pair * pair_sums + row * c_stride;
      float* to = first && !last ? kept : fresh_ + parity_ * block_sums;
      multiply(o, next, b, blocks, rows, to);
      finish(block_rows);
      if (to != kept) pending_ = {to, kept, pair, row, row + rows, first, last}, parity_ ^= 1;
    }
  }

  // The first blocks prefetch the next piece, equal parts each.
  void multiply(const Operands& o, const std::byte* next, int b, int blocks, int rows, float* c) {
    const bool streams = rows <= tile_rows && P::lines_per_tile == tile_lines;  // as fast as memory: the hardware prefetches
    if (blocks == 1 && streams) return multiply(o, Nothing{}, rows, c);
    if (blocks < 2) return multiply_fetching<1>(o, next, b, rows, c);
    if (blocks < 4) return multiply_fetching<2>(o, next, b, rows, c);
    if (blocks < 8 || P::lines_per_tile < 8) return multiply_fetching<4>(o, next, b, rows, c);
    if constexpr (P::lines_per_tile >= 8) multiply_fetching<8>(o, next, b, rows, c);
  }

  // A long piece is read at many places at a time, which uses more of the memory than reading it in order.
  template <int parts>
  void multiply_fetching(const Operands& o, const std::byte* next, int b, int rows, float* c) {
    if (b >= parts) return multiply(o, Nothing{}, rows, c);
    constexpr int of = P::lines_per_tile, lines = of / parts;
    if constexpr (parts == 1 || of < tile_lines) {
      multiply(o, Prefetched<lines, of>{next + b * lines * line_bytes, w_.bytes, line_bytes}, rows, c);
    } else {
      const std::size_t part_bytes = std::size_t{line_bytes} * o.tiles;
      multiply(o, Prefetched<lines, 1>{next + b * part_bytes, w_.bytes, parts * part_bytes}, rows, c);
    }
  }

  template <class Ahead>
  void multiply(const Operands& o, const Ahead& ahead, int rows, float* c) {
        asm volatile("" : : : "memory");  // the compiler does not know what tile loads read
    const auto overlapped = [this] { finish(finished_rows); };
    if (rows <= tile_rows) return multiply_16<Dot>(o, ahead, c, overlapped);
    multiply_32<Dot>(o, ahead, c, overlapped);
  }

  // At most `rows` rows of the pending block.
  void finish(int rows) {
    Pending& b = pending_;
    rows = smaller(rows, b.end - b.row);
    if (rows <= 0) return;
    b.last_of_k ? complete(rows) : add_up<Number>(b.fresh, rows * c_stride, b.kept);
    b.row += rows, b.fresh += rows * c_stride, b.kept += rows * c_stride;
  }

  void complete(int rows) {
    const Pending& b = pending_;
    if (!b.first_of_k) add_up<Number>(b.kept, rows * c_stride, b.fresh);
    if (P::activation == Activation::u8)
      for (int i = 0; i < 2; ++i)
        to_floats(x_, b.row, rows, w_.data + (2 * b.pair + i) * w_.bytes, b.fresh + i * strip_rows);
    epilogue_(b.fresh, b.row, rows, 2 * b.pair);
  }

  const Rows& x_;
  const Strips& w_;
  float* kept_;
  std::byte* unpacked_;
  float* fresh_;
  const Epilogue& epilogue_;
  int parity_ = 0;
  Pending pending_;
};

template <class P, class Epilogue>
void for_groups(const Rows& x, const Strips& weights, std::byte* scratch, Epilogue epilogue) {
  for (int r = 0; r < x.count; r += chunk_rows)
    for (int s = 0; s < weights.count; s += 2 * group_pairs) {
      const Rows rows = rows_from(x, r, chunk_rows);
      const Strips group = strips_from(weights, s, 2 * group_pairs);
      const auto of_group = [&](const float* c, int row, int count, int strip) {
        epilogue(c, r + row, count, s + strip);
      };
      GroupProduct<P, decltype(of_group)>(rows, group, scratch, of_group).run();
    }
}

// Tile multiplies of one job: two per 16 rows of activations, tile of k and pair of strips.
std::uint64_t tile_dots(const Rows& x, const Strips& weights) {
  const int row_blocks = (x.count + tile_rows - 1) / tile_rows;
  return 2ull * row_blocks * row_tiles(x) * (weights.count / 2);
}

template <class P>
[[gnu::flatten]] void gate_up_amx(const GateUp& job, Counters& counters) {
  for_groups<P>(job.x, job.weights, job.scratch, [&](const float* c, int row, int rows, int strip) {
    activate(c, c_stride, rows, 2, job, row, strip);
  });
  counters.*tiles_counter += tile_dots(job.x, job.weights);
}

template <class P>
[[gnu::flatten]] void down_amx(const Down& job, Counters& counters) {
  for_groups<P>(job.h, job.weights, job.scratch, [&](const float* c, int row, int rows, int strip) {
    scatter(c, c_stride, rows, c_stride, job, row, job.out + strip * strip_rows);
  });
  counters.*tiles_counter += tile_dots(job.h, job.weights);
}

// From how many rows on dequantising pays: vectors multiply blocks well, super-blocks less, e4m3 least. A thread of
// Granite Rapids, 24 rows: q4_0 0.68 TOPS by vectors and 0.55 by tiles, q4_k 0.49 and 0.51, fp8 0.20 and 0.53.
constexpr int widened_from(const Format& format) {
  return format.scales == Scales::tile ? 8 : format.has_supers() ? 20 : 40;
}

// By default `from` this many rows on.
template <class P, int from = 5>
constexpr Kernels kernels_on{P::activation, tiles_enter, tiles_leave, gate_up_amx<P>, down_amx<P>, prepare_row,
                             round_all, {1, from}};

struct Amx {
  template <Format format>
  static consteval Kernels of() {
    if constexpr (format.scales == Scales::none) return kernels_on<Bf16>;
    else if constexpr (format == Format{Numbers::int8, Scales::row, 0}) return kernels_on<Int8>;
    else if constexpr (format.scales == Scales::group) return kernels_on<Int4>;
    else return kernels_on<Widened<format>, widened_from(format)>;
  }
};

}  // namespace

constinit KernelSet KTBENCH_AMX_KERNELS = kernel_set<Amx>();

}  // namespace ktbench
