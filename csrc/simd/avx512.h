// Sixteen floats in one AVX-512 register.
#pragma once

#include <cstdint>
#include <cstring>

#include <immintrin.h>

namespace kvarn::KVARN_ISA {

struct F16 {
    __m512 v;
};

inline F16 zero() { return {_mm512_setzero_ps()}; }
inline F16 splat(float x) { return {_mm512_set1_ps(x)}; }
inline F16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, F16 a) { _mm512_storeu_ps(p, a.v); }

// The first n of sixteen lanes set.
inline __mmask16 first_lanes(int n) { return static_cast<__mmask16>((1u << n) - 1u); }
// The first n numbers; the others are zero, and their memory is not touched. 0 <= n <= 16.
inline F16 load_first(const float* p, int n) { return {_mm512_maskz_loadu_ps(first_lanes(n), p)}; }
inline void store_first(float* p, F16 a, int n) { _mm512_mask_storeu_ps(p, first_lanes(n), a.v); }

inline F16 add(F16 a, F16 b) { return {_mm512_add_ps(a.v, b.v)}; }
inline F16 sub(F16 a, F16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline F16 mul(F16 a, F16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline F16 div(F16 a, F16 b) { return {_mm512_div_ps(a.v, b.v)}; }
// a * b + c
inline F16 fma(F16 a, F16 b, F16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
// b where either is NaN.
inline F16 max(F16 a, F16 b) { return {_mm512_max_ps(a.v, b.v)}; }
inline F16 min(F16 a, F16 b) { return {_mm512_min_ps(a.v, b.v)}; }
inline F16 sqrt(F16 a) { return {_mm512_sqrt_ps(a.v)}; }
// To the nearest integer, ties to even.
inline F16 round(F16 a) {
    return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
// 2^a for whole numbers a in [-127, 128]; 2^-127 is given as 0, 2^128 as infinity. Of NaN, any number.
inline F16 power_of_two(F16 a) {
    const __m512i exponent = _mm512_add_epi32(_mm512_cvtps_epi32(a.v), _mm512_set1_epi32(127));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(exponent, 23))};
}
// a, in its register: see simd/avx2.h.
inline F16 settled(F16 a) {
    asm volatile("" : "+v"(a.v));
    return a;
}
// a where x < y, else b.
inline F16 where_less(F16 x, F16 y, F16 a, F16 b) {
    return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(x.v, y.v, _CMP_LT_OQ), b.v, a.v)};
}

// Sums and maxima of all sixteen, in a fixed tree: halves onto each other, four times.
inline float reduce_add(F16 a) {
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
inline float reduce_max(F16 a) {
    const __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

// The lanes in which a >= b, the first one in the lowest bit.
inline std::uint32_t lanes_at_least(F16 a, F16 b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GE_OQ); }

// Sums in double precision: exact in any order for whole numbers whose sum stays below 2^53.
struct WideSum {
    __m512d v;
};
inline WideSum wide_zero() { return {_mm512_setzero_pd()}; }
// Adds all sixteen numbers.
inline WideSum add_wide(WideSum sum, F16 a) {
    const __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(a.v));
    return {_mm512_add_pd(sum.v, _mm512_add_pd(low, _mm512_cvtps_pd(_mm512_extractf32x8_ps(a.v, 1))))};
}
inline double reduce_add(WideSum sum) {
    const __m256d four = _mm256_add_pd(_mm512_castpd512_pd256(sum.v), _mm512_extractf64x4_pd(sum.v, 1));
    const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
    return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}

// Sixteen pairs of bfloat16 [16][2]: the first, or the second, number of each pair.
inline F16 bf16_even(const void* p) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16))};
}
inline F16 bf16_odd(const void* p) {
    const __m512i high = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
    return {_mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(p), high))};
}
// Bits rounded to bfloat16 (ties to even; NaN stays NaN) in the high half of each lane; the low half is zero.
// In integers, not by vcvtneps2bf16: that one takes numbers below 2^-126 for zero.
inline __m512i bf16_high(__m512 x) {
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    const __m512i high = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
    return _mm512_and_si512(_mm512_mask_blend_epi32(nan, rounded, quiet), high);
}
// Sixteen pairs of bfloat16 from the first and second numbers of each.
inline void store_bf16_pairs(void* p, F16 even, F16 odd) {
    _mm512_storeu_si512(p, _mm512_or_si512(_mm512_srli_epi32(bf16_high(even.v), 16), bf16_high(odd.v)));
}
// Sixteen numbers rounded to bfloat16, one after another.
inline void store_bf16(void* p, F16 a) {
    const __m256i words = _mm512_cvtepi32_epi16(_mm512_srli_epi32(bf16_high(a.v), 16));
    _mm256_storeu_si256(static_cast<__m256i*>(p), words);
}
// Sixteen signed bytes as floats.
inline F16 from_int8(const std::int8_t* p) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes))};
}
// Sixteen whole numbers, each in [-128, 127], as signed bytes.
inline void store_int8(std::int8_t* p, F16 a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(a.v)));
}
// Sixteen half-precision numbers as floats.
inline F16 from_half(const void* p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)))};
}
// Sixteen 32-bit integers as floats.
inline F16 from_int32(const std::int32_t* p) { return {_mm512_cvtepi32_ps(_mm512_loadu_si512(p))}; }

}  // namespace kvarn::KVARN_ISA
