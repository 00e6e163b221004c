// Epilogues of both phases, as plain loops that the compiler vectorises for the ISA whose file includes them.
// Everything is in an anonymous namespace: each ISA gets its own copy, and none can leak.
#pragma once

#ifdef __AVX512F__
#include <immintrin.h>

#include <initializer_list>
#endif

#include "core/kernels.h"

namespace ktbench {
namespace {

inline std::uint32_t bits_of(float x) { return __builtin_bit_cast(std::uint32_t, x); }
inline float float_of(std::uint32_t bits) { return __builtin_bit_cast(float, bits); }

// Round to nearest even; a NaN stays a NaN.
inline bf16 to_bf16(float x) {
  const std::uint32_t bits = bits_of(x);
  const std::uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const std::uint32_t quiet = (bits >> 16) | 0x40;
  return static_cast<bf16>((bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded);
}

// exp for |x| within float range, relative error 2e-7 (Cephes' coefficients); 0 and infinity outside.
inline float exp_bounded(float x) {
  x = x < 89.0f ? x : 89.0f;
  x = x > -87.0f ? x : -87.0f;
  constexpr float shifter = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const float shifted = x * 1.44269504f + shifter;
  const float n = shifted - shifter;
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  return p * float_of((bits_of(shifted) - bits_of(shifter) + 127) << 23);
}

inline float silu(float x) { return x / (1.0f + exp_bounded(-x)); }

// A NaN stays a NaN.
inline float at_most(float x, float limit) { return x > limit ? limit : x; }
inline float at_least(float x, float limit) { return x < limit ? limit : x; }

// Beyond it a sigmoid is 0 or 1 for any curve, and 0 times an infinity would be a NaN.
constexpr float largest_square = 1e30f;

// The argument of a gate's sigmoid.
inline float steepened(float gate, const Gating& p) {
  return gate * (p.slope + p.curve * at_most(gate * gate, largest_square));
}

alignas(64) constexpr float no_bias[strip_rows] = {};

#ifdef __AVX512F__

// exp(x) = 2^n * exp(r) with |r| <= ln 2 / 2, relative error 3e-7; x is a NaN or within float range.
inline __m512 exp_16(__m512 x) {
  const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), 0);
  const __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693147181f), x);
  __m512 p = _mm512_set1_ps(1.3981999507e-3f);
  for (const float coefficient : {8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f, 1.0f, 1.0f})
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(coefficient));
  return _mm512_scalef_ps(p, n);
}

// Division would take as long as everything else: the 14 bits of vrcp14ps and one Newton step give 28.
inline __m512 sigmoid_16(__m512 x) {
  const __m512 bounded = _mm512_max_ps(_mm512_min_ps(x, _mm512_set1_ps(87)), _mm512_set1_ps(-87));
  const __m512 d = _mm512_add_ps(exp_16(_mm512_sub_ps(_mm512_setzero_ps(), bounded)), _mm512_set1_ps(1));
  const __m512 y = _mm512_rcp14_ps(d);
  return _mm512_mul_ps(y, _mm512_fnmadd_ps(d, y, _mm512_set1_ps(2)));
}

inline __m256i to_bf16_16(__m512 x) {
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
  const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_mov_epi32(rounded, nan, _mm512_set1_epi32(0x7fc00000)), 16));
}

// c: rows of [16 gate, 16 up] with `stride` floats between rows.
inline void swiglu(const float* c, int stride, int rows, bf16* h, std::size_t h_stride) {
  for (int r = 0; r < rows; ++r, c += stride, h += h_stride) {
    const __m512 gate = _mm512_load_ps(c), up = _mm512_load_ps(c + strip_rows);
    const __m512 y = _mm512_mul_ps(_mm512_mul_ps(gate, sigmoid_16(gate)), up);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(h), to_bf16_16(y));
  }
}

// If the second operand of a minimum or maximum is a NaN, it is the result.
inline __m512 gated_16(__m512 gate, __m512 up, const Gating& p) {
  const __m512 g = _mm512_min_ps(_mm512_set1_ps(p.limit), gate);
  const __m512 u = _mm512_max_ps(_mm512_set1_ps(-p.limit), _mm512_min_ps(_mm512_set1_ps(p.limit), up));
  const __m512 square = _mm512_min_ps(_mm512_mul_ps(g, g), _mm512_set1_ps(largest_square));
  const __m512 slope = _mm512_fmadd_ps(_mm512_set1_ps(p.curve), square, _mm512_set1_ps(p.slope));
  const __m512 act = _mm512_mul_ps(g, sigmoid_16(_mm512_mul_ps(g, slope)));
  return _mm512_mul_ps(act, _mm512_add_ps(u, _mm512_set1_ps(p.offset)));
}

// The same for any gating, with the biases of the 16 columns.
inline void glu(const float* c, int stride, int rows, const Gating& p, const float* gate_bias, const float* up_bias,
                bf16* h, std::size_t h_stride) {
  const __m512 to_gate = _mm512_load_ps(gate_bias), to_up = _mm512_load_ps(up_bias);
  for (int r = 0; r < rows; ++r, c += stride, h += h_stride) {
    const __m512 gate = _mm512_add_ps(_mm512_load_ps(c), to_gate);
    const __m512 up = _mm512_add_ps(_mm512_load_ps(c + strip_rows), to_up);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(h), to_bf16_16(gated_16(gate, up, p)));
  }
}

#else

// c: rows of [16 gate, 16 up] with `stride` floats between rows.
inline void swiglu(const float* c, int stride, int rows, bf16* h, std::size_t h_stride) {
  for (int r = 0; r < rows; ++r, c += stride, h += h_stride)
    for (int i = 0; i < strip_rows; ++i) h[i] = to_bf16(silu(c[i]) * c[strip_rows + i]);
}

inline float gated(float gate, float up, const Gating& p) {
  const float g = at_most(gate, p.limit), u = at_least(at_most(up, p.limit), -p.limit);
  return g / (1.0f + exp_bounded(-steepened(g, p))) * (u + p.offset);
}

// The same for any gating, with the biases of the 16 columns.
inline void glu(const float* c, int stride, int rows, const Gating& p, const float* gate_bias, const float* up_bias,
                bf16* h, std::size_t h_stride) {
  for (int r = 0; r < rows; ++r, c += stride, h += h_stride)
    for (int i = 0; i < strip_rows; ++i) h[i] = to_bf16(gated(c[i] + gate_bias[i], c[strip_rows + i] + up_bias[i], p));
}

#endif

// Out of line, so that plain SwiGLU stays as it is.
[[gnu::noinline]] inline void glu_strips(const float* c, int stride, int rows, int strips, const GateUp& job,
                                         int first_row, int first_strip) {
  for (int s = 0; s < strips; s += 2) {
    const int column = (first_strip + s) / 2 * strip_rows;
    const float* gate_bias = job.gate_bias ? job.gate_bias + column : no_bias;
    const float* up_bias = job.up_bias ? job.up_bias + column : no_bias;
    bf16* h = job.h + first_row * job.h_stride + column;
    glu(c + s * strip_rows, stride, rows, *job.gating, gate_bias, up_bias, h, job.h_stride);
  }
}

// c: rows of products of `strips` strips, written to the job's h from `first_row` and `first_strip` on.
inline void activate(const float* c, int stride, int rows, int strips, const GateUp& job, int first_row,
                     int first_strip) {
  if (job.gating) return glu_strips(c, stride, rows, strips, job, first_row, first_strip);
  bf16* h = job.h + first_row * job.h_stride + first_strip / 2 * strip_rows;
  for (int pair = 0; pair < strips / 2; ++pair)
    swiglu(c + pair * 2 * strip_rows, stride, rows, h + pair * strip_rows, job.h_stride);
}

// c: rows of `columns` products, row r added to the output row of its token.
inline void scatter(const float* c, int stride, int rows, int columns, const Down& job, int first_row, float* out) {
  for (int r = 0; r < rows; ++r, c += stride) {
    const float gate = job.gate[first_row + r];
    float* to = out + job.token[first_row + r] * job.out_stride;
    for (int i = 0; i < columns; ++i) to[i] += gate * c[i];
  }
}

inline void round_all(const float* from, bf16* to, int count) {
  for (int i = 0; i < count; ++i) to[i] = to_bf16(from[i]);
}

}  // namespace
}  // namespace ktbench
