// Integer dot products by AVX-512 VNNI, which multiplies unsigned by signed bytes into 32-bit sums.
//
// int8: inputs are given as 128 more than they are, and so unsigned; the sums begin with what that adds to them.
// int4: weights are unsigned as they are.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "linear/dot.h"
#include "simd/byte_dot.h"

namespace kvarn::KVARN_ISA {

constexpr int kDotRows = 8;   // rows of a register tile

constexpr std::int64_t kAhead = 2048;    // bytes of weights that are called into the cache before they are read

using Q8 = std::uint8_t;

inline void arrange8(const std::int8_t* q, std::int64_t count, Q8* out) {
    for (std::int64_t i = 0; i < count; ++i) out[i] = static_cast<Q8>(q[i] + 128);
}

// Calls tile<R>(arguments, first) for row tiles of nearly the same size, R at most kDotRows.
template <class Tile>
void in_row_tiles(std::int64_t count, const Tile& tile) {
    const std::int64_t tiles = (count + kDotRows - 1) / kDotRows;
    for (std::int64_t t = 0; t < tiles; ++t) {
        const std::int64_t first = count * t / tiles, rows = count * (t + 1) / tiles - first;
        [&]<int... r>(std::integer_sequence<int, r...>) {
            ((rows == r + 1 ? tile(std::integral_constant<int, r + 1>(), first) : void()), ...);
        }(std::make_integer_sequence<int, kDotRows>());
    }
}

inline void dots8(const Rows8<Q8>& x, const Panel8& panel, std::int32_t* dots) {
    const I16 begin = multiply_low(load_ints(panel.sums), splat_int(-128));
    in_row_tiles(x.count, [&]<int R>(std::integral_constant<int, R>, std::int64_t first) {
        const Q8* inputs = x.values + first * x.stride;
        I16 sums[R];
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) sums[r] = begin;
        for (std::int64_t k = 0; k < panel.in; k += kQuad) {
            const I16 weights = load_ints(panel.values + k * kPanel);
            __builtin_prefetch(panel.values + k * kPanel + kAhead);
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r)
                sums[r] = add_dots(sums[r], splat_int(four_bytes(inputs + r * x.stride + k)), weights);
        }
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) store_ints(dots + (first + r) * kPanel, sums[r]);
    });
}

// Minus the sum.
inline std::int32_t sum32(const std::int8_t* q) {
    std::int32_t sum = 0;
    for (std::int64_t k = 0; k < kSubScaled; ++k) sum -= q[k];
    return sum;
}

// sums[r][n] += products of 32 inputs `q` with a panel's weights, as if zero points were 0.
template <int R>
void add_dots32(const std::int8_t* q, std::int64_t stride, const std::uint8_t* weights, I16 (&sums)[R]) {
#pragma GCC unroll 4
    for (std::int64_t k = 0; k < kSubScaled; k += 2 * kQuad) {
        const I16 both = load_ints(weights + k * kPanel / 2), low = low_nibbles(both), high = high_nibbles(both);
        __builtin_prefetch(weights + k * kPanel / 2 + kAhead);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            sums[r] = add_dots(sums[r], low, splat_int(four_bytes(q + r * stride + k)));
            sums[r] = add_dots(sums[r], high, splat_int(four_bytes(q + r * stride + k + kQuad)));
        }
    }
}

// sums[r][n] = products of one block of inputs with a panel's weights. `part` counts the 32 inputs before it.
template <bool kHasSubScales, int R>
[[gnu::always_inline]] inline void block_dots(const Rows4& x, std::int64_t row, const Panel4& panel, std::int64_t part, std::int64_t parts,
                I16 zeros, I16 (&sums)[R]) {
    const std::int64_t all_parts = panel.in / kSubScaled;
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) sums[r] = splat_int(0);
    for (const std::int64_t end = part + parts; part < end; ++part) {
        const std::int8_t* q = x.values + row * x.stride + part * kSubScaled;
        const std::uint8_t* weights = panel.values + part * (kSubScaled * kPanel / 2);
        const std::int32_t* of_part = x.sums + row * all_parts + part;
        I16 sub_scales{}, dots[R];
        if constexpr (kHasSubScales) sub_scales = from_int8_words(panel.sub_scales + part * kPanel);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            const I16 minus = splat_int(of_part[r * all_parts]);
            dots[r] = kHasSubScales ? times_eight(minus) : multiply_low(zeros, minus);
        }
        add_dots32<R>(q, x.stride, weights, dots);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r)
            sums[r] = kHasSubScales ? add_products(sums[r], dots[r], sub_scales) : add_ints(sums[r], dots[r]);
    }
}

template <bool kHasSubScales, std::int64_t kBlockParts>
void blocks_of_dots4(const Rows4& x, const Panel4& panel, float* out) {
    const std::int64_t blocks = panel.blocks(), group_blocks = panel.group / panel.block;
    const std::int64_t all_parts = panel.in / kSubScaled;
    in_row_tiles(x.count, [&]<int R>(std::integral_constant<int, R>, std::int64_t first) {
        F16 totals[R] = {};
        for (std::int64_t block = 0; block < blocks; ++block) {
            const std::int64_t group = block / group_blocks * kPanel, part = block * kBlockParts;
            const I16 zeros = panel.zeros ? from_uint8(panel.zeros + group) : splat_int(8);
            const F16 scales = from_half(panel.scales + group);
            I16 sums[R];
            block_dots<kHasSubScales, R>(x, first, panel, part, kBlockParts == 1 ? 1 : std::min(kBlockParts, all_parts - part), zeros, sums);
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r)
                totals[r] = fma(to_floats(sums[r]), mul(splat(x.scales[(first + r) * blocks + block]), scales), totals[r]);
        }
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) store(out + (first + r) * kPanel, totals[r]);
    });
}

inline void dots4(const Rows4& x, const Panel4& panel, float* out) {
    constexpr std::int64_t kMany = kScaleInputs / kSubScaled;
    if (panel.sub_scales) blocks_of_dots4<true, kMany>(x, panel, out);
    else if (panel.block == kScaleInputs) blocks_of_dots4<false, kMany>(x, panel, out);
    else blocks_of_dots4<false, 1>(x, panel, out);
}

}  // namespace kvarn::KVARN_ISA
