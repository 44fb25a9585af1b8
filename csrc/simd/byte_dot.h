// Dot products of bytes, added to sixteen 32-bit integers (AVX-512 VNNI), and what goes with them.
#pragma once

#include <cstdint>
#include <cstring>

#include "simd/simd.h"

namespace kvarn::KVARN_ISA {

inline std::int32_t four_bytes(const void* p) {
    std::int32_t bytes;
    std::memcpy(&bytes, p, 4);
    return bytes;
}

#if KVARN_HAS_ZMM

// Sixteen 32-bit integers, or sixteen times four bytes.
struct I16 {
    __m512i v;
};

inline I16 splat_int(std::int32_t x) { return {_mm512_set1_epi32(x)}; }
inline I16 load_ints(const void* p) { return {_mm512_loadu_si512(p)}; }
inline void store_ints(void* p, I16 a) { _mm512_storeu_si512(p, a.v); }
// Sixteen unsigned bytes as integers.
inline I16 from_uint8(const std::uint8_t* p) {
    return {_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
// Sixteen signed bytes as the low words of integers, their high words zero.
inline I16 from_int8_words(const std::int8_t* p) {
    const __m512i ints = _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return {_mm512_and_si512(ints, _mm512_set1_epi32(0xffff))};
}
// sums + a * b for a in [-2^15, 2^15) and b from from_int8_words.
inline I16 add_products(I16 sums, I16 a, I16 b) { return {_mm512_dpwssd_epi32(sums.v, a.v, b.v)}; }
inline I16 times_eight(I16 a) { return {_mm512_slli_epi32(a.v, 3)}; }
// The low word of each integer, in both its words.
inline I16 twice(I16 a) { return {_mm512_or_si512(a.v, _mm512_slli_epi32(a.v, 16))}; }
// Each byte (unsigned) less its lane's zero point, times its lane's sub-scale, both given as from `twice`.
inline I16 scale_bytes(I16 bytes, I16 zeros, I16 sub_scales) {
    const __m512i low = _mm512_set1_epi16(255);
    const __m512i even = _mm512_mullo_epi16(_mm512_sub_epi16(_mm512_and_si512(bytes.v, low), zeros.v), sub_scales.v);
    const __m512i odd = _mm512_mullo_epi16(_mm512_sub_epi16(_mm512_srli_epi16(bytes.v, 8), zeros.v), sub_scales.v);
    return {_mm512_or_si512(_mm512_and_si512(even, low), _mm512_slli_epi16(odd, 8))};
}
inline I16 add_ints(I16 a, I16 b) { return {_mm512_add_epi32(a.v, b.v)}; }
inline I16 multiply_low(I16 a, I16 b) { return {_mm512_mullo_epi32(a.v, b.v)}; }
inline F16 to_floats(I16 a) { return {_mm512_cvtepi32_ps(a.v)}; }
// The low, or high, half of each byte.
inline I16 low_nibbles(I16 bytes) { return {_mm512_and_si512(bytes.v, _mm512_set1_epi8(15))}; }
inline I16 high_nibbles(I16 bytes) { return low_nibbles({_mm512_srli_epi16(bytes.v, 4)}); }
// sums[n] += the four products of unsigned and signed bytes of lane n. Nothing saturates.
inline I16 add_dots(I16 sums, I16 unsigned_bytes, I16 signed_bytes) {
    return {_mm512_dpbusd_epi32(sums.v, unsigned_bytes.v, signed_bytes.v)};
}

#else

struct I16 {
    __m256i lo, hi;
};

inline I16 splat_int(std::int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
inline I16 load_ints(const void* p) {
    const auto* v = static_cast<const __m256i*>(p);
    return {_mm256_loadu_si256(v), _mm256_loadu_si256(v + 1)};
}
inline void store_ints(void* p, I16 a) {
    auto* v = static_cast<__m256i*>(p);
    _mm256_storeu_si256(v, a.lo);
    _mm256_storeu_si256(v + 1, a.hi);
}
inline I16 from_uint8(const std::uint8_t* p) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return {_mm256_cvtepu8_epi32(bytes), _mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8))};
}
inline I16 from_int8_words(const std::int8_t* p) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    const __m256i low = _mm256_set1_epi32(0xffff);
    return {_mm256_and_si256(_mm256_cvtepi8_epi32(bytes), low),
            _mm256_and_si256(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8)), low)};
}
inline I16 add_products(I16 sums, I16 a, I16 b) {
    return {_mm256_add_epi32(sums.lo, _mm256_madd_epi16(a.lo, b.lo)),
            _mm256_add_epi32(sums.hi, _mm256_madd_epi16(a.hi, b.hi))};
}
inline I16 times_eight(I16 a) { return {_mm256_slli_epi32(a.lo, 3), _mm256_slli_epi32(a.hi, 3)}; }
inline I16 twice(I16 a) {
    return {_mm256_or_si256(a.lo, _mm256_slli_epi32(a.lo, 16)), _mm256_or_si256(a.hi, _mm256_slli_epi32(a.hi, 16))};
}
inline __m256i scale_bytes_256(__m256i bytes, __m256i zeros, __m256i sub_scales) {
    const __m256i low = _mm256_set1_epi16(255);
    const __m256i even = _mm256_mullo_epi16(_mm256_sub_epi16(_mm256_and_si256(bytes, low), zeros), sub_scales);
    const __m256i odd = _mm256_mullo_epi16(_mm256_sub_epi16(_mm256_srli_epi16(bytes, 8), zeros), sub_scales);
    return _mm256_or_si256(_mm256_and_si256(even, low), _mm256_slli_epi16(odd, 8));
}
inline I16 scale_bytes(I16 bytes, I16 zeros, I16 sub_scales) {
    return {scale_bytes_256(bytes.lo, zeros.lo, sub_scales.lo), scale_bytes_256(bytes.hi, zeros.hi, sub_scales.hi)};
}
inline I16 add_ints(I16 a, I16 b) { return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)}; }
inline I16 multiply_low(I16 a, I16 b) { return {_mm256_mullo_epi32(a.lo, b.lo), _mm256_mullo_epi32(a.hi, b.hi)}; }
inline F16 to_floats(I16 a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
inline I16 low_nibbles(I16 bytes) {
    const __m256i low = _mm256_set1_epi8(15);
    return {_mm256_and_si256(bytes.lo, low), _mm256_and_si256(bytes.hi, low)};
}
inline I16 high_nibbles(I16 bytes) {
    return low_nibbles({_mm256_srli_epi16(bytes.lo, 4), _mm256_srli_epi16(bytes.hi, 4)});
}
// VPDPBUSD in software: in 16-bit words, where no product or sum of two overflows 32 bits.
inline __m256i add_dots_256(__m256i sums, __m256i unsigned_bytes, __m256i signed_bytes) {
    const __m256i even = _mm256_madd_epi16(_mm256_and_si256(unsigned_bytes, _mm256_set1_epi16(255)),
                                           _mm256_srai_epi16(_mm256_slli_epi16(signed_bytes, 8), 8));
    const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(unsigned_bytes, 8), _mm256_srai_epi16(signed_bytes, 8));
    return _mm256_add_epi32(sums, _mm256_add_epi32(even, odd));
}
inline I16 add_dots(I16 sums, I16 unsigned_bytes, I16 signed_bytes) {
    return {add_dots_256(sums.lo, unsigned_bytes.lo, signed_bytes.lo),
            add_dots_256(sums.hi, unsigned_bytes.hi, signed_bytes.hi)};
}

#endif

}  // namespace kvarn::KVARN_ISA
