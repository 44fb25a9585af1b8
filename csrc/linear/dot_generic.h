// Integer dot products in plain C++.
#pragma once

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

inline std::int32_t block_sum(const std::int8_t* q) {
    std::int32_t sum = 0;
    for (std::int64_t k = 0; k < kBlock; ++k) sum += q[k];
    return sum;
}

// Dots of one row with one block of a panel, without zero points.
inline void block_dots(const std::int8_t* q, const std::uint8_t* values, std::int32_t* dots) {
    for (std::int64_t n = 0; n < kPanel; ++n) dots[n] = 0;
    for (std::int64_t k = 0; k < kBlock; ++k) {
        const std::uint8_t* weights = values + k / (2 * kQuad) * (kQuad * kPanel) + k % kQuad;
        const int shift = k / kQuad % 2 ? 4 : 0;
        for (std::int64_t n = 0; n < kPanel; ++n) dots[n] += q[k] * (weights[n * kQuad] >> shift & 15);
    }
}

inline void dots4(const Rows4& x, const Panel4& panel, float* sums) {
    const std::int64_t blocks = panel.in / kBlock;
    for (std::int64_t r = 0; r < x.count; ++r) {
        float* out = sums + r * kPanel;
        for (std::int64_t n = 0; n < kPanel; ++n) out[n] = 0.0f;
        for (std::int64_t b = 0; b < blocks; ++b) {
            const std::int64_t group = b * kBlock / panel.group;
            std::int32_t dots[kPanel];
            float scales[kPanel];
            block_dots(x.values + r * x.stride + b * kBlock, panel.values + b * (kBlock * kPanel / 2), dots);
            store(scales, mul(splat(x.scales[r * blocks + b]), from_half(panel.scales + group * kPanel)));
            for (std::int64_t n = 0; n < kPanel; ++n) {
                const std::int32_t zero = panel.zeros ? panel.zeros[group * kPanel + n] : 8;
                // One rounding, as on the other instruction sets.
                out[n] = std::fma(static_cast<float>(dots[n] - zero * x.sums[r * blocks + b]), scales[n], out[n]);
            }
        }
    }
}

}  // namespace kvarn::KVARN_ISA
