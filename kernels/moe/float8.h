// Strips of e4m3 (OCP 8-bit floating point, FN: no infinities) with a scale for each row and for each 128 of k, and the
// blocks of a checkpoint that become such strips: a float32 scale, then 128 codes. Scales shared by all rows of a strip
// (tiles of 128 x 128) and scales shared along k (per channel) are kept; others are rejected.
#pragma once

#include "moe/pack.h"

namespace ktbench {

// The largest magnitude of 16 rows x 128 k becomes 448, the largest value; ties go to even. Rows with a NaN or an
// infinity get a NaN scale.
void pack_float8(const MatrixView& from, int rows, int depth, const Format& format, std::byte* strip);
// A NaN code makes its row's scale a NaN. Throws std::invalid_argument for other scales than the above.
void pack_float8(const BlockView& from, int rows, int depth, const Format& format, std::byte* strip);

// `to`: rows `stride` floats apart.
void unpack_float8(const std::byte* strip, int rows, int depth, const Format& format, float* to, std::size_t stride);

// The code of a number within +-448; ties go to even.
std::uint8_t nearest_e4m3(float x);

}  // namespace ktbench
