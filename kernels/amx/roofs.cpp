#include "amx/tiles.h"

namespace ktbench {
namespace {

// Four independent sums; a dot of 16 x 16 sums over `depth` products each.
template <class Dot>
double burn(long rounds, int depth, Dot dot) {
  tiles_enter();
  tile_zero<0>(), tile_zero<1>(), tile_zero<2>(), tile_zero<3>();
  tile_zero<4>(), tile_zero<5>(), tile_zero<6>(), tile_zero<7>();
  for (long i = 0; i < rounds; ++i) dot();
  tiles_leave();
  return 4.0 * 2 * 16 * 16 * depth * rounds;
}

}  // namespace

double burn_amx_bf16(long rounds) {
  return burn(rounds, 32, [] {
    DotBf16::add<0, 4, 6>(), DotBf16::add<1, 4, 7>();
    DotBf16::add<2, 5, 6>(), DotBf16::add<3, 5, 7>();
  });
}

double burn_amx_int8(long rounds) {
  return burn(rounds, 64, [] {
    DotInt8::add<0, 4, 6>(), DotInt8::add<1, 4, 7>();
    DotInt8::add<2, 5, 6>(), DotInt8::add<3, 5, 7>();
  });
}

}  // namespace ktbench
