// Which register blocks AVX-512 uses, by number of rows.
#pragma once

#include "avx512/policies.h"

namespace ktbench {
namespace {

// Sums of up to 24 rows fit the registers, split over k while there are few.
constexpr int tallest = 24;
constexpr int split_of(int sums) { return sums <= 6 ? 4 : sums <= 12 ? 2 : 1; }

template <class P, class Heights = std::make_integer_sequence<int, tallest>,
          class PairHeights = std::make_integer_sequence<int, tallest / 2>>
struct Streams;
template <class P, int... r, int... p>
struct Streams<P, std::integer_sequence<int, r...>, std::integer_sequence<int, p...>> {
  static constexpr Stream pairs[] = {stream<P, p + 1, 2, split_of(2 * p + 2), true>...};
  static constexpr Stream fetching[] = {stream<P, r + 1, 1, split_of(r + 1), true>...};
  static constexpr Stream singles[] = {stream<P, r + 1, 1, split_of(r + 1), false>...};
};

// int4 keeps sums of the group and of the whole.
template <class P, class Heights = std::make_integer_sequence<int, tallest / 2>,
          class PairHeights = std::make_integer_sequence<int, tallest / 4>>
struct StreamsInt4;
template <class P, int... r, int... p>
struct StreamsInt4<P, std::integer_sequence<int, r...>, std::integer_sequence<int, p...>> {
  static constexpr Stream pairs[] = {stream_int4<P, p + 1, 2, true>...};
  static constexpr Stream fetching[] = {stream_int4<P, r + 1, 1, true>...};
  static constexpr Stream singles[] = {stream_int4<P, r + 1, 1, false>...};
};

// From five rows on register blocks are faster, whose activations are multiplied with four strips each (Zen 4: 0.26
// against 0.20 TOPS at eight).
constexpr int few_gguf = 4;
template <class P, class Lines, class Heights = std::make_integer_sequence<int, few_gguf>>
struct StreamsGguf;
template <class P, class Lines, int... r>
struct StreamsGguf<P, Lines, std::integer_sequence<int, r...>> {
  static constexpr Stream pairs[] = {stream_gguf<P, Lines, r + 1, 2, true>...};
  static constexpr Stream fetching[] = {stream_gguf<P, Lines, r + 1, 1, true>...};
  static constexpr Stream singles[] = {stream_gguf<P, Lines, r + 1, 1, false>...};
};

// One sum of a group and one of the whole for each row and strip; the latter may lie in L1.
constexpr int few_tiles = 12;
template <class P, class Heights = std::make_integer_sequence<int, few_tiles>,
          class PairHeights = std::make_integer_sequence<int, few_tiles / 2>>
struct StreamsTiles;
template <class P, int... r, int... p>
struct StreamsTiles<P, std::integer_sequence<int, r...>, std::integer_sequence<int, p...>> {
  static constexpr int split(int sums) { return sums <= 2 ? 4 : sums <= 4 ? 2 : 1; }
  static constexpr Stream pairs[] = {stream_tiles<P, p + 1, 2, split(2 * p + 2), true>...};
  static constexpr Stream fetching[] = {stream_tiles<P, r + 1, 1, split(r + 1), true>...};
  static constexpr Stream singles[] = {stream_tiles<P, r + 1, 1, split(r + 1), false>...};
};

// Sums of a group and of the whole for each row. All prefetch: compiling other loops would take long for no gain.
constexpr int few_supers = 8;
template <class P, int group, bool minima, class Heights = std::make_integer_sequence<int, few_supers>,
          class PairHeights = std::make_integer_sequence<int, few_supers / 2>>
struct StreamsSupers;
template <class P, int group, bool minima, int... r, int... p>
struct StreamsSupers<P, group, minima, std::integer_sequence<int, r...>, std::integer_sequence<int, p...>> {
  static constexpr Stream pairs[] = {stream_supers<P, group, minima, p + 1, 2>...};
  static constexpr Stream fetching[] = {stream_supers<P, group, minima, r + 1, 1>...};
  static constexpr auto& singles = fetching;
};

struct Loops {
  // `Wide` multiplies many rows, on panels made by `Panels`.
  template <class P, class Wide = P, class Panels = PackedPanels>
  using ByRow =
      KernelsOf<P, StreamKernel<Streams<P>, tallest>, BlockKernel<Wide, Panels>, Crossover{1, tallest + 1}, &Counters::avx512_calls>;
  template <class P>
  using ByGroup = KernelsOf<P, StreamKernel<StreamsInt4<P>, tallest / 2>, BlockKernel<P, UnpackedPanels>,
                            Crossover{1, tallest / 2 + 1}, &Counters::avx512_calls>;
  template <class P, class Lines, class Panels>
  using ByBlock = KernelsOf<P, StreamKernel<StreamsGguf<P, Lines>, few_gguf>, BlockKernel<P, Panels>,
                            Crossover{1, few_gguf + 1}, &Counters::avx512_calls>;
  // Both decode records into L1. A core of Granite Rapids, q4_k, one row and eight: 0.76 and 1.25 ms by streams, 0.66 and
  // 1.17 by register blocks, whose prefetches are spread more evenly.
  template <class P, int group, bool minima>
  using BySuper = KernelsOf<P, StreamKernel<StreamsSupers<P, group, minima>, few_supers>,
                            BlockKernel<P, SuperPanels<group, minima>>, Crossover{1, 1}, &Counters::avx512_calls>;
  template <class P>
  using ByTile = KernelsOf<P, StreamKernel<StreamsTiles<P>, few_tiles>, BlockKernel<P, WidePanels<fp8>>,
                           Crossover{1, few_tiles + 1}, &Counters::avx512_calls>;
};

}  // namespace
}  // namespace ktbench
