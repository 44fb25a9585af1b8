// Reading and writing one block of one head (the layouts are in attention.h).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "attention/attention.h"
#include "simd/simd.h"

namespace kvarn::KVARN_ISA {

constexpr std::int64_t kScaleBytes = kBlock * sizeof(float);    // before the numbers of an int8 block

inline const float* scales_of(const std::byte* block) { return reinterpret_cast<const float*>(block); }

// Number `dim` + `i` (dim even, i 0 or 1) of the keys at all sixteen positions.
template <KvType type>
inline F16 load_keys(const std::byte* block, std::int64_t dim, int i) {
    if constexpr (type == KvType::f32) {
        return load(reinterpret_cast<const float*>(block) + (dim + i) * kBlock);
    } else if constexpr (type == KvType::bf16) {
        const std::byte* pairs = block + dim * kBlock * 2;
        return i ? bf16_odd(pairs) : bf16_even(pairs);
    } else {
        return from_int8(reinterpret_cast<const std::int8_t*>(block + kScaleBytes) + (dim + i) * kBlock);
    }
}

// Where in a block of values the numbers from `dim` on at `position` (even) and the next one begin.
template <KvType type>
inline std::int64_t place_of_values(std::int64_t position, std::int64_t dim, std::int64_t padded) {
    if constexpr (type == KvType::f32) return (position * padded + dim) * 4;
    if constexpr (type == KvType::bf16) return position * padded * 2 + dim * 4;
    return kScaleBytes + position * padded + dim;
}

// Sixteen numbers from `dim` on of the values at `position` (even) + `i` (0 or 1).
template <KvType type>
inline F16 load_values(const std::byte* block, std::int64_t position, std::int64_t dim, std::int64_t padded, int i) {
    const std::byte* place = block + place_of_values<type>(position, dim, padded);
    if constexpr (type == KvType::f32) return load(reinterpret_cast<const float*>(place) + i * padded);
    if constexpr (type == KvType::bf16) return i ? bf16_odd(place) : bf16_even(place);
    return from_int8(reinterpret_cast<const std::int8_t*>(place) + i * padded);
}

// To the nearest bfloat16, ties to even; NaN stays NaN.
inline void round_bf16(const float* x, std::int64_t dim, std::uint16_t* out) {
    for (std::int64_t d = 0; d < dim; d += 16)
        store_bf16(out + d, load_first(x + d, static_cast<int>(std::min<std::int64_t>(16, dim - d))));
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
        alignas(64) std::uint16_t rounded[kMaxHeadDim];
        round_bf16(key, dim, rounded);
        auto* out = reinterpret_cast<std::uint16_t*>(block) + 2 * position;
        for (std::int64_t d = 0; d < dim; d += 2) std::memcpy(out + d * kBlock, rounded + d, 4);
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
        alignas(64) std::uint16_t rounded[kMaxHeadDim];
        round_bf16(value, dim, rounded);
        for (std::int64_t d = 0; d < dim; ++d) out[2 * d] = rounded[d];
    } else {
        auto* out = reinterpret_cast<std::int8_t*>(block + kScaleBytes) + position * padded;
        reinterpret_cast<float*>(block)[position] = quantise_head(value, dim, out, 1);
    }
}

}  // namespace kvarn::KVARN_ISA
