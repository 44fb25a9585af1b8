// Sixteen floats in two AVX2 registers.
#pragma once

#include <cstdint>
#include <cstring>

#include <immintrin.h>

namespace kvarn::KVARN_ISA {

struct F16 {
    __m256 lo, hi;
};

inline F16 zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline F16 splat(float x) { const __m256 v = _mm256_set1_ps(x); return {v, v}; }
inline F16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, F16 a) { _mm256_storeu_ps(p, a.lo); _mm256_storeu_ps(p + 8, a.hi); }

// The first n of eight lanes set.
inline __m256i first_lanes(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
// The first n numbers; the others are zero, and their memory is not touched. 0 <= n <= 16.
inline F16 load_first(const float* p, int n) {
    return {_mm256_maskload_ps(p, first_lanes(n)), _mm256_maskload_ps(p + 8, first_lanes(n - 8))};
}
inline void store_first(float* p, F16 a, int n) {
    if (n == 16) return store(p, a);    // a masked store takes AMD's processors tens of cycles
    _mm256_maskstore_ps(p, first_lanes(n), a.lo);
    _mm256_maskstore_ps(p + 8, first_lanes(n - 8), a.hi);
}

inline F16 add(F16 a, F16 b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
inline F16 sub(F16 a, F16 b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
inline F16 mul(F16 a, F16 b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
inline F16 div(F16 a, F16 b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
// a * b + c
inline F16 fma(F16 a, F16 b, F16 c) {
    return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
// b where either is NaN.
inline F16 max(F16 a, F16 b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
inline F16 min(F16 a, F16 b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
inline F16 sqrt(F16 a) { return {_mm256_sqrt_ps(a.lo), _mm256_sqrt_ps(a.hi)}; }
// To the nearest integer, ties to even.
inline F16 round(F16 a) {
    constexpr int nearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return {_mm256_round_ps(a.lo, nearest), _mm256_round_ps(a.hi, nearest)};
}
// 2^a for whole numbers a in [-127, 128]; 2^-127 is given as 0, 2^128 as infinity. Of NaN, any number.
inline F16 power_of_two(F16 a) {
    const __m256i bias = _mm256_set1_epi32(127);
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(a.lo), bias), 23)),
            _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(a.hi), bias), 23))};
}
// a, in its registers: GCC orders nothing across this, which otherwise multiplies for all rows of a tile first, and then
// has no registers left for their sums.
inline F16 settled(F16 a) {
    asm volatile("" : "+x"(a.lo), "+x"(a.hi));
    return a;
}
// a where x < y, else b.
inline F16 where_less(F16 x, F16 y, F16 a, F16 b) {
    return {_mm256_blendv_ps(b.lo, a.lo, _mm256_cmp_ps(x.lo, y.lo, _CMP_LT_OQ)),
            _mm256_blendv_ps(b.hi, a.hi, _mm256_cmp_ps(x.hi, y.hi, _CMP_LT_OQ))};
}

// Sums and maxima of all sixteen, in a fixed tree: halves onto each other, four times.
inline float reduce_add(F16 a) {
    const __m256 eight = _mm256_add_ps(a.lo, a.hi);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
inline float reduce_max(F16 a) {
    const __m256 eight = _mm256_max_ps(a.lo, a.hi);
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

// The lanes in which a >= b, the first one in the lowest bit.
inline std::uint32_t lanes_at_least(F16 a, F16 b) {
    const int lo = _mm256_movemask_ps(_mm256_cmp_ps(a.lo, b.lo, _CMP_GE_OQ));
    const int hi = _mm256_movemask_ps(_mm256_cmp_ps(a.hi, b.hi, _CMP_GE_OQ));
    return static_cast<std::uint32_t>(hi << 8 | lo);
}

// Sums in double precision: exact in any order for whole numbers whose sum stays below 2^53.
struct WideSum {
    __m256d v;
};
inline WideSum wide_zero() { return {_mm256_setzero_pd()}; }
// Adds all sixteen numbers.
inline WideSum add_wide(WideSum sum, F16 a) {
    const auto halves = [](__m256 x) {
        return _mm256_add_pd(_mm256_cvtps_pd(_mm256_castps256_ps128(x)), _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1)));
    };
    return {_mm256_add_pd(sum.v, _mm256_add_pd(halves(a.lo), halves(a.hi)))};
}
inline double reduce_add(WideSum sum) {
    const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(sum.v), _mm256_extractf128_pd(sum.v, 1));
    return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}

// Sixteen pairs of bfloat16 [16][2]: the first, or the second, number of each pair.
inline F16 bf16_even(const void* p) {
    const auto* v = static_cast<const __m256i*>(p);
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256(v), 16)),
            _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256(v + 1), 16))};
}
inline F16 bf16_odd(const void* p) {
    const auto* v = static_cast<const __m256i*>(p);
    const __m256i high = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
    return {_mm256_castsi256_ps(_mm256_and_si256(_mm256_loadu_si256(v), high)),
            _mm256_castsi256_ps(_mm256_and_si256(_mm256_loadu_si256(v + 1), high))};
}
// Bits rounded to bfloat16 (ties to even; NaN stays NaN) in the high half of each lane; the low half is zero.
inline __m256i bf16_high(__m256 x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    return _mm256_and_si256(_mm256_blendv_epi8(rounded, quiet, nan), _mm256_set1_epi32(static_cast<int>(0xffff0000u)));
}
// Sixteen pairs of bfloat16 from the first and second numbers of each.
inline void store_bf16_pairs(void* p, F16 even, F16 odd) {
    auto* v = static_cast<__m256i*>(p);
    _mm256_storeu_si256(v, _mm256_or_si256(_mm256_srli_epi32(bf16_high(even.lo), 16), bf16_high(odd.lo)));
    _mm256_storeu_si256(v + 1, _mm256_or_si256(_mm256_srli_epi32(bf16_high(even.hi), 16), bf16_high(odd.hi)));
}
// Sixteen numbers rounded to bfloat16, one after another.
inline void store_bf16(void* p, F16 a) {
    const __m256i lo = _mm256_srli_epi32(bf16_high(a.lo), 16), hi = _mm256_srli_epi32(bf16_high(a.hi), 16);
    _mm256_storeu_si256(static_cast<__m256i*>(p), _mm256_permute4x64_epi64(_mm256_packus_epi32(lo, hi), 0xd8));
}
// Sixteen signed bytes as floats.
inline F16 from_int8(const std::int8_t* p) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8)))};
}
// Sixteen whole numbers, each in [-128, 127], as signed bytes.
inline void store_int8(std::int8_t* p, F16 a) {
    const __m256i words = _mm256_packs_epi32(_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi));
    const __m256i ordered = _mm256_permute4x64_epi64(words, 0xd8);
    const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(ordered), _mm256_extracti128_si256(ordered, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
}
// Sixteen half-precision numbers as floats.
inline F16 from_half(const void* p) {
    const auto* v = static_cast<const __m128i*>(p);
    return {_mm256_cvtph_ps(_mm_loadu_si128(v)), _mm256_cvtph_ps(_mm_loadu_si128(v + 1))};
}
// Sixteen 32-bit integers as floats.
inline F16 from_int32(const std::int32_t* p) {
    const auto* v = reinterpret_cast<const __m256i*>(p);
    return {_mm256_cvtepi32_ps(_mm256_loadu_si256(v)), _mm256_cvtepi32_ps(_mm256_loadu_si256(v + 1))};
}

}  // namespace kvarn::KVARN_ISA
