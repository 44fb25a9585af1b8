// Integer dot products in plain C++.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "linear/dot.h"
#include "simd/simd.h"

namespace kvarn::KVARN_ISA {

using Q8 = std::int8_t;

inline void arrange8(const std::int8_t* q, std::int64_t count, Q8* out) {
    std::memcpy(out, q, static_cast<std::size_t>(count));
}

inline void dots8(const Rows8<Q8>& x, const Panel8& panel, std::int32_t* dots) {
    for (std::int64_t r = 0; r < x.count; ++r) {
        std::int32_t sums[kPanel] = {};
        for (std::int64_t k = 0; k < panel.in; ++k) {
            const std::int32_t q = x.values[r * x.stride + k];
            const std::int8_t* weights = panel.values + k / kQuad * (kQuad * kPanel) + k % kQuad;
            for (std::int64_t n = 0; n < kPanel; ++n) sums[n] += q * weights[n * kQuad];
        }
        std::memcpy(dots + r * kPanel, sums, sizeof sums);
    }
}

inline std::int32_t sum32(const std::int8_t* q) {
    std::int32_t sum = 0;
    for (std::int64_t k = 0; k < kSubScaled; ++k) sum += q[k];
    return sum;
}

// Dots of 32 inputs of one row with a panel, as if zero points were 0.
inline void dots32(const std::int8_t* q, const std::uint8_t* values, std::int32_t* dots) {
    for (std::int64_t n = 0; n < kPanel; ++n) dots[n] = 0;
    for (std::int64_t k = 0; k < kSubScaled; ++k) {
        const std::uint8_t* weights = values + k / (2 * kQuad) * (kQuad * kPanel) + k % kQuad;
        const int shift = k / kQuad % 2 ? 4 : 0;
        for (std::int64_t n = 0; n < kPanel; ++n) dots[n] += q[k] * (weights[n * kQuad] >> shift & 15);
    }
}

inline void dots4(const Rows4& x, const Panel4& panel, float* sums) {
    const std::int64_t blocks = panel.blocks(), all_parts = panel.in / kSubScaled;
    const std::int64_t block_parts = panel.block / kSubScaled;
    for (std::int64_t r = 0; r < x.count; ++r) {
        float* out = sums + r * kPanel;
        for (std::int64_t n = 0; n < kPanel; ++n) out[n] = 0.0f;
        for (std::int64_t b = 0; b < blocks; ++b) {
            const std::int64_t group = b * panel.block / panel.group;
            std::int32_t total[kPanel] = {}, dots[kPanel];
            for (std::int64_t part = b * block_parts; part < std::min((b + 1) * block_parts, all_parts); ++part) {
                dots32(x.values + r * x.stride + part * kSubScaled,
                       panel.values + part * (kSubScaled * kPanel / 2), dots);
                for (std::int64_t n = 0; n < kPanel; ++n) {
                    const std::int32_t zero = panel.zeros ? panel.zeros[group * kPanel + n] : 8;
                    const std::int32_t sub_scale = panel.sub_scales ? panel.sub_scales[part * kPanel + n] : 1;
                    total[n] += sub_scale * (dots[n] - zero * x.sums[r * all_parts + part]);
                }
            }
            float scales[kPanel];
            store(scales, mul(splat(x.scales[r * blocks + b]), from_half(panel.scales + group * kPanel)));
            // One rounding, as on the other instruction sets.
            for (std::int64_t n = 0; n < kPanel; ++n) out[n] = std::fma(static_cast<float>(total[n]), scales[n], out[n]);
        }
    }
}

}  // namespace kvarn::KVARN_ISA
