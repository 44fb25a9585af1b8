// Half-precision numbers, one at a time.
#pragma once

#include <bit>
#include <cstdint>

namespace kvarn {

inline float from_half_bits(std::uint16_t half) {
    const float magnitude = (half & 0x7c00) == 0x7c00 ? std::bit_cast<float>((half & 0x7fffu) << 13 | 0x7f800000u)
                            : (half & 0x7c00)         ? std::bit_cast<float>(((half & 0x7fffu) << 13) + (112u << 23))
                                                      : static_cast<float>(half & 0x3ff) * 0x1p-24f;
    return half & 0x8000 ? -magnitude : magnitude;
}

// To the nearest, ties to even; infinity where that is above the largest.
inline std::uint16_t to_half_bits(float x) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(x), magnitude = bits & 0x7fffffffu;
    const auto sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000u);
    if (magnitude > 0x7f800000u) return sign | 0x7e00u;
    if (magnitude >= 0x477ff000u) return sign | 0x7c00u;
    if (magnitude < 0x38800000u) {    // below the smallest normal number: steps of 2^-24, which the sum rounds to
        const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
        return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000u));
    }
    const std::uint32_t odd = magnitude >> 13 & 1u;
    return static_cast<std::uint16_t>(sign | (magnitude - (112u << 23) + 0xfffu + odd) >> 13);
}

}  // namespace kvarn
