// Integer dot products by AVX-512 VNNI, which multiplies unsigned by signed bytes into 32-bit sums.
//
// int8: inputs are given as 128 more than they are, and so unsigned; the sums begin with what that adds to them.
// int4: weights are unsigned as they are.
#pragma once

#include <array>
#include <cstdint>
#include <utility>

#include "linear/dot.h"
#include "simd/byte_dot.h"

namespace kvarn::KVARN_ISA {

constexpr int kDotRows = 8;   // rows of a register tile

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
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r)
                sums[r] = add_dots(sums[r], splat_int(four_bytes(inputs + r * x.stride + k)), weights);
        }
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) store_ints(dots + (first + r) * kPanel, sums[r]);
    });
}

inline std::int32_t block_sum(const std::int8_t* q) {
    std::int32_t sum = 0;
    for (std::int64_t k = 0; k < kBlock; ++k) sum += q[k];
    return sum;
}

// sums[r][n] = products of one block of inputs `q` with a panel's weights, zero points not yet taken off.
template <int R>
void block_dots(const std::int8_t* q, std::int64_t stride, const std::uint8_t* weights, I16 (&sums)[R]) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) sums[r] = splat_int(0);
#pragma GCC unroll 4
    for (std::int64_t k = 0; k < kBlock; k += 2 * kQuad) {
        const I16 both = load_ints(weights + k * kPanel / 2), low = low_nibbles(both), high = high_nibbles(both);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            sums[r] = add_dots(sums[r], low, splat_int(four_bytes(q + r * stride + k)));
            sums[r] = add_dots(sums[r], high, splat_int(four_bytes(q + r * stride + k + kQuad)));
        }
    }
}

inline void dots4(const Rows4& x, const Panel4& panel, float* out) {
    const std::int64_t blocks = panel.in / kBlock, group_blocks = panel.group / kBlock;
    in_row_tiles(x.count, [&]<int R>(std::integral_constant<int, R>, std::int64_t first) {
        F16 totals[R] = {};
        for (std::int64_t block = 0; block < blocks; ++block) {
            I16 sums[R];
            block_dots<R>(x.values + first * x.stride + block * kBlock, x.stride,
                          panel.values + block * (kBlock * kPanel / 2), sums);
            const std::int64_t group = block / group_blocks * kPanel;
            const I16 zeros = panel.zeros ? from_uint8(panel.zeros + group) : splat_int(8);
            const F16 scales = from_half(panel.scales + group);
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) {
                const std::int64_t at = (first + r) * blocks + block;
                const F16 dots = to_floats(subtract(sums[r], multiply_low(zeros, splat_int(x.sums[at]))));
                totals[r] = fma(dots, mul(splat(x.scales[at]), scales), totals[r]);
            }
        }
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) store(out + (first + r) * kPanel, totals[r]);
    });
}

}  // namespace kvarn::KVARN_ISA
