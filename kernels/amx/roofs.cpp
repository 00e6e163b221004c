#include "amx/tiles.h"

namespace ktbench {

double burn_amx(long rounds) {
  tiles_enter();
  tile_zero<0>(), tile_zero<1>(), tile_zero<2>(), tile_zero<3>();
  tile_zero<4>(), tile_zero<5>(), tile_zero<6>(), tile_zero<7>();
  for (long i = 0; i < rounds; ++i) {
    tile_dot<0, 4, 6>(), tile_dot<1, 4, 7>();
    tile_dot<2, 5, 6>(), tile_dot<3, 5, 7>();
  }
  tiles_leave();
  return 4.0 * 2 * 16 * 16 * 32 * rounds;
}

}  // namespace ktbench
