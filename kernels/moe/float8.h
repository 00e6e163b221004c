// Strips of e4m3 (OCP 8-bit floating point, FN: no infinities) with a scale for each row and for each 128 of k, and the
// blocks of a checkpoint that become such strips: a float32 scale, then 128 codes. Scales that all rows of a strip share
// (tiles of 128 x 128) and scales that a row shares along k (per channel) are kept; others are refused.
#pragma once

#include "moe/pack.h"

namespace ktbench {

// The largest magnitude of 16 rows x 128 of k becomes 448, the largest number; ties go to even. Rows with a NaN or an
// infinity get a scale of NaN.
void pack_float8(const MatrixView& from, int rows, int depth, const Format& format, std::byte* strip);
// A code that is no number makes its row's scale a NaN. Throws std::invalid_argument for other scales than the above.
void pack_float8(const BlockView& from, int rows, int depth, const Format& format, std::byte* strip);

// `to`: rows `stride` floats apart.
void unpack_float8(const std::byte* strip, int rows, int depth, const Format& format, float* to, std::size_t stride);

// The code of a number within +-448; ties go to even.
std::uint8_t nearest_e4m3(float x);

}  // namespace ktbench
