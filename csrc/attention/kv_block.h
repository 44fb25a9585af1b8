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
    std::int64_t d = 0;
    for (; d + 16 <= dim; d += 16) store_bf16(out + d, load(x + d));
    if (d < dim) store_bf16(out + d, load_first(x + d, static_cast<int>(dim - d)));
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

// Writes `count` keys [count][kMaxHeadDim] to the positions from `position` on of a block.
inline void store_keys(std::byte* block, KvType type, const float* keys, std::int64_t count, std::int64_t dim,
                       std::int64_t position) {
    if (type == KvType::f32) {
        auto* out = reinterpret_cast<float*>(block) + position;
        for (std::int64_t d = 0; d < dim; ++d)
            for (std::int64_t t = 0; t < count; ++t) out[d * kBlock + t] = keys[t * kMaxHeadDim + d];
    } else if (type == KvType::bf16) {
        alignas(64) std::uint32_t pairs[kBlock][kMaxHeadDim / 2];
        for (std::int64_t t = 0; t < count; ++t)
            round_bf16(keys + t * kMaxHeadDim, dim, reinterpret_cast<std::uint16_t*>(pairs[t]));
        auto* out = reinterpret_cast<std::uint32_t*>(block) + position;
        for (std::int64_t d = 0; d < dim / 2; ++d)
            for (std::int64_t t = 0; t < count; ++t) out[d * kBlock + t] = pairs[t][d];
    } else {
        auto* out = reinterpret_cast<std::int8_t*>(block + kScaleBytes) + position;
        for (std::int64_t t = 0; t < count; ++t)
            reinterpret_cast<float*>(block)[position + t] = quantise_head(keys + t * kMaxHeadDim, dim, out + t, kBlock);
    }
}

// Writes `count` values, `stride` floats apart, to the positions from `position` on of a block.
inline void store_values(std::byte* block, KvType type, const float* values, std::int64_t stride, std::int64_t count,
                         const HeadShape& shape, std::int64_t position) {
    const std::int64_t dim = shape.dim, padded = shape.padded_dim();
    if (type == KvType::f32) {
        auto* out = reinterpret_cast<float*>(block) + position * padded;
        for (std::int64_t t = 0; t < count; ++t) std::memcpy(out + t * padded, values + t * stride, dim * sizeof(float));
    } else if (type == KvType::bf16) {
        alignas(64) std::uint16_t rounded[2][kMaxHeadDim];
        for (std::int64_t t = 0; t < count;) {
            auto* pairs = reinterpret_cast<std::uint32_t*>(block) + (position + t) / 2 * padded;
            const bool odd = (position + t) % 2, whole = !odd && t + 2 <= count;
            round_bf16(values + t * stride, dim, rounded[0]);
            if (whole) {
                round_bf16(values + (t + 1) * stride, dim, rounded[1]);
                for (std::int64_t d = 0; d < dim; ++d)
                    pairs[d] = rounded[0][d] | static_cast<std::uint32_t>(rounded[1][d]) << 16;
            } else {
                auto* out = reinterpret_cast<std::uint16_t*>(pairs) + odd;
                for (std::int64_t d = 0; d < dim; ++d) out[2 * d] = rounded[0][d];
            }
            t += whole ? 2 : 1;
        }
    } else {
        auto* out = reinterpret_cast<std::int8_t*>(block + kScaleBytes) + position * padded;
        for (std::int64_t t = 0; t < count; ++t)
            reinterpret_cast<float*>(block)[position + t] = quantise_head(values + t * stride, dim, out + t * padded, 1);
    }
}

}  // namespace kvarn::KVARN_ISA
