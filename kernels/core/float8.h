// Codes of e4m3: a sign, four bits of exponent (bias 7), three of mantissa; 0x7f and 0xff are NaN, there are no
// infinities (OCP 8-bit floating point, section 5). Every value is exact in bf16. In a line the codes of four rows take
// 16 bytes: k and k + 1 of each row, then k + 2 and k + 3, so that interleaving the bytes of a line with others gives
// two lines of bf16.
#pragma once

#ifdef __AVX2__
#include <immintrin.h>
#endif

#include <array>

#include "core/layout.h"

namespace ktbench {
namespace {

constexpr std::uint8_t e4m3_nan = 0x7f, e4m3_largest = 0x7e;

constexpr bf16 bf16_of_e4m3(std::uint8_t code) {
  // m x 2^-9 for m = 0 to 7
  constexpr bf16 subnormals[] = {0, 0x3b00, 0x3b80, 0x3bc0, 0x3c00, 0x3c20, 0x3c40, 0x3c60};
  const int sign = (code & 0x80) << 8, magnitude = code & 0x7f;
  if (magnitude == e4m3_nan) return static_cast<bf16>(sign | 0x7fc0);
  return static_cast<bf16>(sign | (magnitude < 8 ? subnormals[magnitude] : (magnitude << 4) + (120 << 7)));
}

// The byte for k + `i` among a row's four bytes of a line.
constexpr int e4m3_byte(int row, int i) { return row / 4 * 16 + i / 2 * 8 + row % 4 * 2 + i % 2; }

// The codes of a line, or of half a line, as two vectors of pairs of bf16.
#if defined(__AVX512VBMI__)

// A byte of the bf16 of each code without its sign.
template <int byte>
constexpr auto e4m3_bytes = [] {
  std::array<std::uint8_t, 128> bytes{};
  for (int code = 0; code < 128; ++code)
    bytes[code] = static_cast<std::uint8_t>(bf16_of_e4m3(static_cast<std::uint8_t>(code)) >> 8 * byte);
  return bytes;
}();

template <int byte>
inline __m512i looked_up(__m512i codes) {
  const auto* table = e4m3_bytes<byte>.data();
  return _mm512_permutex2var_epi8(_mm512_loadu_si512(table), codes, _mm512_loadu_si512(table + 64));
}

inline void e4m3_pairs(__m512i codes, __m512i (&pairs)[2]) {
  constexpr int or_of_masked = 0xf8;  // a | (b & c)
  const __m512i low = looked_up<0>(codes);
  const __m512i high = _mm512_ternarylogic_epi32(looked_up<1>(codes), codes, _mm512_set1_epi8(-128), or_of_masked);
  pairs[0] = _mm512_unpacklo_epi8(low, high);
  pairs[1] = _mm512_unpackhi_epi8(low, high);
}

#elif defined(__AVX512BW__)

// For codes in the upper bytes of 16 bits.
inline __m512i bf16_of_upper(__m512i codes) {
  const __m512i magnitude = _mm512_and_si512(_mm512_srli_epi16(codes, 4), _mm512_set1_epi16(0x7f0));
  const __m512i normal = _mm512_add_epi16(magnitude, _mm512_set1_epi16(120 << 7));
  const __mmask32 small = _mm512_cmplt_epu16_mask(magnitude, _mm512_set1_epi16(8 << 4));
  const __m512i table = _mm512_broadcast_i32x4(_mm_setr_epi16(0, 0x3b00, 0x3b80, 0x3bc0, 0x3c00, 0x3c20, 0x3c40, 0x3c60));
  const __m512i number = _mm512_mask_permutexvar_epi16(normal, small, _mm512_srli_epi16(magnitude, 4), table);
  constexpr int or_of_masked = 0xf8;
  return _mm512_ternarylogic_epi32(number, codes, _mm512_set1_epi16(-0x8000), or_of_masked);
}

inline void e4m3_pairs(__m512i codes, __m512i (&pairs)[2]) {
  pairs[0] = bf16_of_upper(_mm512_unpacklo_epi8(_mm512_setzero_si512(), codes));
  pairs[1] = bf16_of_upper(_mm512_unpackhi_epi8(_mm512_setzero_si512(), codes));
}

#elif defined(__AVX2__)

inline __m256i bf16_of_upper(__m256i codes) {
  const __m256i magnitude = _mm256_and_si256(_mm256_srli_epi16(codes, 4), _mm256_set1_epi16(0x7f0));
  const __m256i normal = _mm256_add_epi16(magnitude, _mm256_set1_epi16(120 << 7));
  const __m256i small = _mm256_cmpgt_epi16(_mm256_set1_epi16(8 << 4), magnitude);
  const __m256i table = _mm256_broadcastsi128_si256(
      _mm_setr_epi16(0, 0x3b00, 0x3b80, 0x3bc0, 0x3c00, 0x3c20, 0x3c40, 0x3c60));
  // Entry m: bytes 2 m and 2 m + 1.
  const __m256i bytes = _mm256_add_epi16(_mm256_mullo_epi16(_mm256_srli_epi16(magnitude, 4), _mm256_set1_epi16(0x202)),
                                         _mm256_set1_epi16(0x100));
  const __m256i number = _mm256_blendv_epi8(normal, _mm256_shuffle_epi8(table, bytes), small);
  return _mm256_or_si256(number, _mm256_and_si256(codes, _mm256_set1_epi16(-0x8000)));
}

inline void e4m3_pairs(__m256i codes, __m256i (&pairs)[2]) {
  pairs[0] = bf16_of_upper(_mm256_unpacklo_epi8(_mm256_setzero_si256(), codes));
  pairs[1] = bf16_of_upper(_mm256_unpackhi_epi8(_mm256_setzero_si256(), codes));
}

#endif

}  // namespace
}  // namespace ktbench
