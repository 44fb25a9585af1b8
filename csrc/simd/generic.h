// Sixteen floats in plain C++, which the compiler brings onto whatever the processor has.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace kvarn::KVARN_ISA {

struct F16 {
    float v[16];
};

#define KVARN_EACH(expression)                      \
    F16 out;                                        \
    for (int i = 0; i < 16; ++i) out.v[i] = (expression); \
    return out

inline F16 zero() { return {}; }
inline F16 splat(float x) { KVARN_EACH(x); }
inline F16 load(const float* p) { F16 out; std::memcpy(out.v, p, 64); return out; }
inline void store(float* p, F16 a) { std::memcpy(p, a.v, 64); }
// The first n numbers; the others are zero, and their memory is not touched. 0 <= n <= 16.
inline F16 load_first(const float* p, int n) { F16 out{}; std::memcpy(out.v, p, 4 * n); return out; }
inline void store_first(float* p, F16 a, int n) { std::memcpy(p, a.v, 4 * n); }

inline F16 add(F16 a, F16 b) { KVARN_EACH(a.v[i] + b.v[i]); }
inline F16 sub(F16 a, F16 b) { KVARN_EACH(a.v[i] - b.v[i]); }
inline F16 mul(F16 a, F16 b) { KVARN_EACH(a.v[i] * b.v[i]); }
inline F16 div(F16 a, F16 b) { KVARN_EACH(a.v[i] / b.v[i]); }
// a * b + c, rounded once where the processor has an instruction for it (arm64), else twice.
#if defined(__FP_FAST_FMAF)
inline F16 fma(F16 a, F16 b, F16 c) { KVARN_EACH(std::fma(a.v[i], b.v[i], c.v[i])); }
#else
inline F16 fma(F16 a, F16 b, F16 c) { KVARN_EACH(a.v[i] * b.v[i] + c.v[i]); }
#endif
// b where either is NaN.
inline F16 max(F16 a, F16 b) { KVARN_EACH(a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
inline F16 min(F16 a, F16 b) { KVARN_EACH(a.v[i] < b.v[i] ? a.v[i] : b.v[i]); }
inline F16 sqrt(F16 a) { KVARN_EACH(std::sqrt(a.v[i])); }
// To the nearest integer, ties to even.
inline F16 round(F16 a) { KVARN_EACH(std::nearbyintf(a.v[i])); }
// 2^a for whole numbers a in [-127, 128]; 2^-127 is given as 0, 2^128 as infinity. Of NaN, any number.
inline F16 power_of_two(F16 a) {
    // Added to 1.5 * 2^23, a whole number stands in the lowest bits.
    KVARN_EACH(std::bit_cast<float>(std::bit_cast<std::uint32_t>(a.v[i] + (0x1.8p23f + 127.0f)) << 23));
}
// See simd/avx2.h: there are no registers to be kept here.
inline F16 settled(const F16& a) { return a; }
// a where x < y, else b.
inline F16 where_less(F16 x, F16 y, F16 a, F16 b) { KVARN_EACH(x.v[i] < y.v[i] ? a.v[i] : b.v[i]); }

// Sums and maxima of all sixteen, in a fixed tree: halves onto each other, four times.
inline float reduce_add(F16 a) {
    for (int half = 8; half; half /= 2)
        for (int i = 0; i < half; ++i) a.v[i] += a.v[i + half];
    return a.v[0];
}
inline float reduce_max(F16 a) {
    for (int half = 8; half; half /= 2)
        for (int i = 0; i < half; ++i) a.v[i] = a.v[i] > a.v[i + half] ? a.v[i] : a.v[i + half];
    return a.v[0];
}

// The lanes in which a >= b, the first one in the lowest bit.
inline std::uint32_t lanes_at_least(F16 a, F16 b) {
    std::uint32_t lanes = 0;
    for (int i = 0; i < 16; ++i) lanes |= static_cast<std::uint32_t>(a.v[i] >= b.v[i]) << i;
    return lanes;
}

// Sums in double precision: exact in any order for whole numbers whose sum stays below 2^53.
struct WideSum {
    double v[4];
};
inline WideSum wide_zero() { return {}; }
// Adds all sixteen numbers.
inline WideSum add_wide(WideSum sum, F16 a) {
    for (int i = 0; i < 16; ++i) sum.v[i % 4] += a.v[i];
    return sum;
}
inline double reduce_add(WideSum sum) { return (sum.v[0] + sum.v[1]) + (sum.v[2] + sum.v[3]); }

// Sixteen pairs of bfloat16 [16][2]: the first, or the second, number of each pair.
inline F16 bf16_even(const void* p) {
    std::uint32_t pairs[16];
    std::memcpy(pairs, p, 64);
    KVARN_EACH(std::bit_cast<float>(pairs[i] << 16));
}
inline F16 bf16_odd(const void* p) {
    std::uint32_t pairs[16];
    std::memcpy(pairs, p, 64);
    KVARN_EACH(std::bit_cast<float>(pairs[i] & 0xffff0000u));
}
// Round to bfloat16, ties to even; NaN stays NaN.
inline std::uint16_t bf16_bits(float x) {
    const auto bits = std::bit_cast<std::uint32_t>(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>(bits >> 16 | 0x40);
    return static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}
// Sixteen pairs of bfloat16 from the first and second numbers of each.
inline void store_bf16_pairs(void* p, F16 even, F16 odd) {
    std::uint16_t pairs[32];
    for (int i = 0; i < 16; ++i) {
        pairs[2 * i] = bf16_bits(even.v[i]);
        pairs[2 * i + 1] = bf16_bits(odd.v[i]);
    }
    std::memcpy(p, pairs, 64);
}
// Sixteen numbers rounded to bfloat16, one after another.
inline void store_bf16(void* p, F16 a) {
    std::uint16_t numbers[16];
    for (int i = 0; i < 16; ++i) numbers[i] = bf16_bits(a.v[i]);
    std::memcpy(p, numbers, 32);
}
// Sixteen signed bytes as floats.
inline F16 from_int8(const std::int8_t* p) { KVARN_EACH(static_cast<float>(p[i])); }
// Sixteen whole numbers, each in [-128, 127], as signed bytes.
inline void store_int8(std::int8_t* p, F16 a) {
    for (int i = 0; i < 16; ++i) p[i] = static_cast<std::int8_t>(a.v[i]);
}
// Sixteen half-precision numbers as floats.
inline F16 from_half(const void* p) {
    std::uint16_t halves[16];
    std::memcpy(halves, p, 32);
    F16 out;
    for (int i = 0; i < 16; ++i) {
        const std::uint32_t sign = (halves[i] & 0x8000u) << 16, rest = halves[i] & 0x7fffu;
        float magnitude;
        if (rest >= 0x7c00u) magnitude = std::bit_cast<float>((rest << 13) | 0x7f800000u);
        else if (rest >= 0x0400u) magnitude = std::bit_cast<float>((rest << 13) + (112u << 23));
        else magnitude = static_cast<float>(rest) * 0x1p-24f;
        out.v[i] = std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) | sign);
    }
    return out;
}
// Sixteen 32-bit integers as floats.
inline F16 from_int32(const std::int32_t* p) { KVARN_EACH(static_cast<float>(p[i])); }

#undef KVARN_EACH

}  // namespace kvarn::KVARN_ISA
