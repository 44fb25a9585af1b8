// Reading and writing one block of one head (the layouts are in attention.h).
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "attention/attention.h"
#include "simd/simd.h"

namespace kvarn::KVARN_ISA {

struct KvPair {
    F16 first, second;
};

constexpr std::int64_t kScaleBytes = kBlock * sizeof(float);    // before the numbers of an int8 block

inline const float* scales_of(const std::byte* block) { return reinterpret_cast<const float*>(block); }

// Numbers `dim` and `dim` + 1 (dim even) of the keys at all sixteen positions.
template <KvType type>
inline KvPair load_keys(const std::byte* block, std::int64_t dim) {
    if constexpr (type == KvType::f32) {
        const float* numbers = reinterpret_cast<const float*>(block) + dim * kBlock;
        return {load(numbers), load(numbers + kBlock)};
    } else if constexpr (type == KvType::bf16) {
        const std::byte* pairs = block + dim * kBlock * 2;
        return {bf16_even(pairs), bf16_odd(pairs)};
    } else {
        const auto* numbers = reinterpret_cast<const std::int8_t*>(block + kScaleBytes) + dim * kBlock;
        return {from_int8(numbers), from_int8(numbers + kBlock)};
    }
}

// Sixteen numbers from `dim` on of the values at `position` (even) and the next one.
template <KvType type>
inline KvPair load_values(const std::byte* block, std::int64_t position, std::int64_t dim, std::int64_t padded) {
    if constexpr (type == KvType::f32) {
        const float* numbers = reinterpret_cast<const float*>(block) + position * padded + dim;
        return {load(numbers), load(numbers + padded)};
    } else if constexpr (type == KvType::bf16) {
        const std::byte* pairs = block + position * padded * 2 + dim * 4;
        return {bf16_even(pairs), bf16_odd(pairs)};
    } else {
        const auto* numbers = reinterpret_cast<const std::int8_t*>(block + kScaleBytes) + position * padded + dim;
        return {from_int8(numbers), from_int8(numbers + padded)};
    }
}

// To the nearest bfloat16, ties to even; NaN stays NaN.
inline std::uint16_t to_bf16(float x) {
    const auto bits = std::bit_cast<std::uint32_t>(x);
    const std::uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
    return static_cast<std::uint16_t>(x != x ? bits >> 16 | 0x40 : rounded);
}

// Writes the numbers of a head to places `stride` apart, as signed bytes; returns what one unit of them is worth: NaN
// where one of them is infinite or NaN.
inline float quantise_head(const float* x, std::int64_t dim, std::int8_t* out, std::int64_t stride) {
    constexpr float kLargest = 127.0f;
    constexpr float kNothing = 1e-30f;    // below this the inverse of the scale would overflow
    float peak = 0.0f;
    bool spoiled = false;
    for (std::int64_t d = 0; d < dim; ++d) {
        peak = std::max(peak, std::fabs(x[d]));
        spoiled |= !std::isfinite(x[d]);
    }
    const bool usable = peak > kNothing && !spoiled;
    const float inverse = kLargest / peak;
    for (std::int64_t d = 0; d < dim; ++d)
        out[d * stride] = usable ? static_cast<std::int8_t>(std::lrintf(x[d] * inverse)) : std::int8_t{0};
    if (spoiled) return std::numeric_limits<float>::quiet_NaN();
    return usable ? peak / kLargest : 0.0f;
}

inline void store_key(std::byte* block, KvType type, const float* key, std::int64_t dim, std::int64_t position) {
    if (type == KvType::f32) {
        auto* out = reinterpret_cast<float*>(block) + position;
        for (std::int64_t d = 0; d < dim; ++d) out[d * kBlock] = key[d];
    } else if (type == KvType::bf16) {
        auto* out = reinterpret_cast<std::uint16_t*>(block) + 2 * position;
        for (std::int64_t d = 0; d < dim; d += 2) {
            out[d * kBlock] = to_bf16(key[d]);
            out[d * kBlock + 1] = to_bf16(key[d + 1]);
        }
    } else {
        auto* out = reinterpret_cast<std::int8_t*>(block + kScaleBytes) + position;
        reinterpret_cast<float*>(block)[position] = quantise_head(key, dim, out, kBlock);
    }
}

inline void store_value(std::byte* block, KvType type, const float* value, const HeadShape& shape,
                        std::int64_t position) {
    const std::int64_t dim = shape.dim, padded = shape.padded_dim();
    if (type == KvType::f32) {
        std::memcpy(reinterpret_cast<float*>(block) + position * padded, value, dim * sizeof(float));
    } else if (type == KvType::bf16) {
        auto* out = reinterpret_cast<std::uint16_t*>(block) + position / 2 * padded * 2 + position % 2;
        for (std::int64_t d = 0; d < dim; ++d) out[2 * d] = to_bf16(value[d]);
    } else {
        auto* out = reinterpret_cast<std::int8_t*>(block + kScaleBytes) + position * padded;
        reinterpret_cast<float*>(block)[position] = quantise_head(value, dim, out, 1);
    }
}

}  // namespace kvarn::KVARN_ISA
