// Loops for core/blocked.h, made of the register blocks of core/lines.h, core/grouped.h and core/gguf.h.
#pragma once

#include <type_traits>

#include "core/gguf.h"
#include "core/supers.h"
#include "core/tiles.h"

namespace ktbench {
namespace {

using Stream = void (*)(const Rows&, const Strips&, float*);

// For few rows: pairs of strips, each multiplied with up to `n` rows at a time. The first rows read the pair from
// memory, with more rows to hide the latency behind; the others find it in L2. From `Crossover::fetch_from` rows on
// Table::pairs[rows - 1] reads both strips at once, with prefetches; with more rows than it has entries, one strip is
// read after the other.
template <class Table, int n>
struct StreamKernel {
  static constexpr int strips = 2;

  template <class Epilogue>
  static void run(const Rows& x, const Strips& weights, std::byte*, Epilogue epilogue) {
    alignas(64) float c[n * c_stride];
    for (int s = 0; s < weights.count; s += strips)
      for (int r = 0; r < x.count; r += n) {
        const Strips w = strips_from(weights, s, strips);
        const Rows rows = rows_from(x, r, n);
        multiply(rows, w, c);
        epilogue(Products{c, c_stride, r, rows.count, s, w.count});
      }
  }

 private:
  static void multiply(const Rows& x, const Strips& w, float* c) {
    constexpr int paired_rows = sizeof Table::pairs / sizeof *Table::pairs;
    const bool fetches = x.count >= w.crossover.fetch_from;
    if (fetches && x.count <= paired_rows) return Table::pairs[x.count - 1](x, w, c);
    const auto& singles = fetches ? Table::fetching : Table::singles;
    for (int i = 0; i < w.count; ++i) singles[x.count - 1](x, strips_from(w, i, 1), c + i * strip_rows);
  }
};

template <class P, class Panels, int strips, int stride, class Heights>
struct BlockTable;
template <class P, class Panels, int strips, int stride, int... r>
struct BlockTable<P, Panels, strips, stride, std::integer_sequence<int, r...>> {
  using Block = void (*)(const Panel&, const std::byte*, std::size_t, Prefetch&, bool, float*);
  static constexpr Block of[] = {Panels::template block<P, r + 1, strips, stride>...};
};

// For many rows: register blocks of as many rows and strips as there are registers for. `Panels` makes panels from
// strips and names the register block that processes them, its rows, what follows each panel, and how its sums are
// finished.
template <class P, class Panels>
struct BlockKernel {
  static constexpr int strips = P::parts == 1 ? 4 : 2;
    static constexpr int at_once = P::parts == 1 ? 4 : 1;  // strips per register block
  static constexpr int narrow = P::parts == 1 ? 2 : 1;     // the same if a group has fewer
  static constexpr int stride = strips * strip_rows;
  static constexpr int chunk_rows = 192;  // their sums: 48 KiB

  template <class Epilogue>
  static void run(const Rows& x, const Strips& weights, std::byte* scratch, Epilogue epilogue) {
    auto* c = reinterpret_cast<float*>(scratch);
    const int chunk = round_up(even_height(x.count, chunk_rows), block_rows);
    for (int s = 0; s < weights.count; s += strips)
      for (int r = 0; r < x.count; r += chunk) {
        const Strips w = strips_from(weights, s, strips);
        const Rows rows = rows_from(x, r, chunk);
        multiply(rows, w, c, scratch + chunk_rows * stride * sizeof(float));
        epilogue(Products{c, stride, r, rows.count, s, w.count});
      }
  }

 private:
  static constexpr int block_rows = Panels::template rows<P>;
  using Heights = std::make_integer_sequence<int, block_rows>;

  static void multiply(const Rows& x, const Strips& w, float* c, std::byte* unpacked) {
    const int lines = static_cast<int>(x.scale_at) / P::step, pieces = (lines + Panels::piece_lines - 1) / Panels::piece_lines;
    const int blocks = (x.count + block_rows - 1) / block_rows;
    const int turns = lines / turn_lines * blocks * (w.count == at_once ? 1 : w.count / narrow);
    // All of the group that follows, in equal parts.
    Prefetch ahead(w.following, w, turns);
    for (int piece = 0; piece < pieces; ++piece) {
      const int first = piece * Panels::piece_lines;
      const Panel panel = Panels::panel(w, first, smaller(Panels::piece_lines, lines - first), unpacked);
      for (int b = 0; b < blocks; ++b) {
        const int r = x.count * b / blocks, height = x.count * (b + 1) / blocks - r;
        multiply_rows(panel, rows_from(x, r, height), w.count, first, ahead, piece == 0, c + r * stride);
      }
      Panels::template after<P>(panel, x, w.count, first, c, stride);
    }
    for (int r = 0; r < x.count; ++r)
      for (int i = 0; i < w.count * P::parts; ++i)
        Panels::template finish<P>(w, i, row_scale(x, r), c + r * stride + i * part_rows<P>);
  }

  static void multiply_rows(const Panel& panel, const Rows& x, int strip_count, int first_line, Prefetch& ahead,
                            bool begins, float* c) {
    const std::byte* row = x.data + first_line * P::step;
    if (strip_count == at_once)
      return BlockTable<P, Panels, at_once, stride, Heights>::of[x.count - 1](panel, row, x.stride, ahead, begins, c);
    for (int s = 0; s < strip_count; s += narrow)
      BlockTable<P, Panels, narrow, stride, Heights>::of[x.count - 1](
          {panel.lines + s * panel.strip_bytes, panel.strip_bytes, panel.count}, row, x.stride, ahead, begins,
          c + s * strip_rows);
  }
};

// Strips as they are: 128 lines of four strips are 32 KiB.
struct PackedPanels {
  static constexpr int piece_lines = 128;
  static Panel panel(const Strips& w, int first, int count, std::byte*) {
    return {lines_of(w) + first * line_bytes, w.bytes, count};
  }
  template <class P>
  static constexpr int rows = P::block_rows;
  template <class P, int rows, int strips, int c_stride>
  static constexpr auto block = ktbench::block<P, rows, strips, c_stride>;
  template <class P>
  static void after(const Panel&, const Rows&, int, int, float*, int) {}
  template <class P>
  static void finish(const Strips& w, int i, float row_scale, float* c) {
    P::store(P::get(c), i % P::parts, scales_of(w, i / P::parts), row_scale, c);
  }
};

// A format with tile scales as lines of bf16: a piece is whole groups of up to 256 k.
template <Format format>
struct WidePanels : PackedPanels {
  static Panel panel(const Strips& w, int first, int count, std::byte* to) {
    for (int s = 0; s < w.count; ++s)
      widen_strip<format>(w.data + s * w.bytes, 2 * first, 2 * count, to + s * piece_lines * line_bytes);
    return {to, piece_lines * line_bytes, count};
  }
};

// int4 unpacked to int8. A piece begins with a record, whatever its groups.
struct UnpackedPanels : PackedPanels {
  static Panel panel(const Strips& w, int first, int count, std::byte* to) {
    const int group_lines = w.format.group / 8, groups = count / (2 * group_lines);
    for (int s = 0; s < w.count; ++s)
      unpack_groups(record_at(w, s, first / (2 * group_lines)), groups, group_lines, to + s * piece_lines * line_bytes);
    return {to, piece_lines * line_bytes, count};
  }
};

// `Few` multiplies fewer rows than the crossover to `Many`.
template <class P, class Few, class Many, Crossover by_default, std::uint64_t Counters::*calls>
struct KernelsOf {
  static void gate_up(const GateUp& job, Counters& counters) {
    blocks(job.x, job.weights, counters) ? ktbench::gate_up<Many>(job) : ktbench::gate_up<Few>(job);
  }
  static void down(const Down& job, Counters& counters) {
    blocks(job.h, job.weights, counters) ? ktbench::down<Many>(job) : ktbench::down<Few>(job);
  }
  static bool blocks(const Rows& x, const Strips& w, Counters& counters) {
    const bool many = x.count >= w.crossover.block_from, fetches = x.count >= w.crossover.fetch_from;
    ++(counters.*calls);
    ++(many ? counters.block_calls : fetches ? counters.fetching_calls : counters.stream_calls);
    return many;
  }
  static void nothing() {}
  static constexpr Kernels kernels{P::activation, nothing, nothing, gate_up, down, prepare_row, round_all,
                                   by_default};
};

struct NoKernels {
  static constexpr Kernels kernels{};
};

// Which loops multiply which format. `Loops` has those of an instruction set: ByRow<P>, ByGroup<P>, ByBlock<P, Lines,
// Panels>, BySuper<P, group, minima>; `Bf16` are its kernels for bf16, `Fp8` those for e4m3, `P` its policy for
// integers, void if it has none.
template <class Loops, class Bf16, class Fp8, class P>
struct KernelsByFormat {
  template <Format format>
  static consteval Kernels of() {
    constexpr bool int4 = format.numbers == Numbers::int4;
    constexpr Numbers numbers = format.numbers;
    if constexpr (format.scales == Scales::none) return Bf16::kernels;
    else if constexpr (format.scales == Scales::tile) return Fp8::kernels;
    else if constexpr (std::is_void_v<P>) return NoKernels::kernels;
    else if constexpr (format.has_supers()) return Loops::template BySuper<P, coded(numbers).group, coded(numbers).has_minima()>::kernels;
    else if constexpr (format.scales == Scales::row && !int4) return Loops::template ByRow<P>::kernels;
    else if constexpr (format.scales == Scales::group && int4) return Loops::template ByGroup<P>::kernels;
    else if constexpr (format.scales == Scales::block && int4)
      return Loops::template ByBlock<P, FourBits<P, Halves>, UnpackedBlockPanels<Halves>>::kernels;
    else if constexpr (format.scales == Scales::block_bf16 && int4)
      return Loops::template ByBlock<P, FourBits<P, Bf16s>, UnpackedBlockPanels<Bf16s>>::kernels;
    else if constexpr (format.scales == Scales::block && numbers == Numbers::iq4_nl)
      return Loops::template ByBlock<P, Iq4Nl<P>, UnpackedBlockPanels<Halves>>::kernels;
    else if constexpr (format.scales == Scales::power && numbers == Numbers::e2m1)
      return Loops::template ByBlock<P, E2m1<P>, UnpackedBlockPanels<Bf16s>>::kernels;
    else if constexpr (format.scales == Scales::block && numbers == Numbers::int8)
      return Loops::template ByBlock<P, EightBits<P>, BlockPanels<Halves>>::kernels;
    else return NoKernels::kernels;
  }
};

}  // namespace
}  // namespace ktbench
