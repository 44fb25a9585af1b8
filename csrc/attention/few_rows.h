// Attention of up to four rows of queries to one segment in vector registers, with the bits of tiles: so few rows wait
// for memory, and tiles would first have to bring keys and values into their form.
//
// A score is summed as tile products do (simd/tiles.h): over 32 numbers of a head at a time, even ones and odd ones
// apart; a weighted value over a block of positions at a time, likewise.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/products.h"
#include "attention/write.h"

namespace kvarn::KVARN_ISA {

constexpr int kFewRows = 4;

// Calls lines that are read soon into the second cache.
inline void prefetch_lines(const std::byte* first, std::int64_t count, std::size_t stride = 64) {
    for (std::int64_t i = 0; i < count; ++i)
        __builtin_prefetch(first + static_cast<std::size_t>(i) * stride, 0, 2);
}

// What few rows are multiplied with.
struct FewRows {
    const float* queries;    // [rows][kMaxHeadDim], rounded to bfloat16
    float* scores;           // [rows][score_stride]: scores, later weights, rounded
    std::int64_t score_stride;
    float* sums;             // [rows][sum_stride]: weighted values
    std::int64_t sum_stride;
};

// Scores with kBlocks blocks; as many bytes of each `ahead` (null: none) are called nearer meanwhile.
template <KvType type, int kRows, int kBlocks>
void score_few(const FewRows& part, const std::byte* const* keys, const std::byte* const* ahead, std::int64_t dim,
               std::int64_t first_position) {
    constexpr std::int64_t kPairBytes = type == KvType::bf16 ? 64 : 32;
    F16 sums[kBlocks][kRows];
    for (int b = 0; b < kBlocks; ++b)
        for (int r = 0; r < kRows; ++r) sums[b][r] = zero();
    for (std::int64_t step = 0; step < dim; step += kStepDims) {
        F16 even[kBlocks][kRows], odd[kBlocks][kRows];
#pragma GCC unroll 4
        for (int b = 0; b < kBlocks; ++b) {
#pragma GCC unroll 4
            for (int r = 0; r < kRows; ++r) even[b][r] = odd[b][r] = zero();
        }
        const std::int64_t end = std::min(dim, step + kStepDims);
        for (std::int64_t d = step; d < end; d += 2)
#pragma GCC unroll 4
            for (int b = 0; b < kBlocks; ++b) {
                prefetch_lines(ahead[b] + d / 2 * kPairBytes, 1);
                const F16 first = load_keys<type>(keys[b], d, 0), second = load_keys<type>(keys[b], d, 1);
#pragma GCC unroll 4
                for (int r = 0; r < kRows; ++r) {
                    const float* query = part.queries + r * kMaxHeadDim + d;
                    even[b][r] = fma(splat(query[0]), first, even[b][r]);
                    odd[b][r] = fma(splat(query[1]), second, odd[b][r]);
                }
            }
#pragma GCC unroll 4
        for (int b = 0; b < kBlocks; ++b)
#pragma GCC unroll 4
            for (int r = 0; r < kRows; ++r) sums[b][r] = add(sums[b][r], add(even[b][r], odd[b][r]));
    }
    for (int b = 0; b < kBlocks; ++b)
        for (int r = 0; r < kRows; ++r)
            store(part.scores + r * part.score_stride + first_position + b * kBlock, sums[b][r]);
}

// Adds the weighted values of `positions` positions of a block.
template <KvType type, int kRows>
void weigh_few(const FewRows& part, const std::byte* values, const std::byte* ahead, std::int64_t padded,
               std::int64_t first_position, int positions) {
    constexpr int kGroups = 2;
    const float* weights = part.scores + first_position;
    for (std::int64_t dim = 0; dim < padded; dim += 16 * kGroups) {
        const int groups = dim + 16 < padded ? kGroups : 1;
        F16 even[kGroups][kRows], odd[kGroups][kRows];
#pragma GCC unroll 2
        for (int g = 0; g < kGroups; ++g)
#pragma GCC unroll 4
            for (int r = 0; r < kRows; ++r) even[g][r] = odd[g][r] = zero();
        const auto add_pair = [&](int p, bool both) {
#pragma GCC unroll 2
            for (int g = 0; g < kGroups; ++g) {
                if (g >= groups) break;
                prefetch_lines(ahead + place_of_values<type>(p, dim + 16 * g, padded), 1);
                if constexpr (type == KvType::int8) prefetch_lines(ahead + place_of_values<type>(p, dim + 16 * g, padded) + padded, 1);
                const F16 first = load_values<type>(values, p, dim + 16 * g, padded, 0);
#pragma GCC unroll 4
                for (int r = 0; r < kRows; ++r)
                    even[g][r] = fma(splat(weights[r * part.score_stride + p]), first, even[g][r]);
                if (!both) continue;
                const F16 second = load_values<type>(values, p, dim + 16 * g, padded, 1);
#pragma GCC unroll 4
                for (int r = 0; r < kRows; ++r)
                    odd[g][r] = fma(splat(weights[r * part.score_stride + p + 1]), second, odd[g][r]);
            }
        };
        int p = 0;
        for (; p + 2 <= positions; p += 2) add_pair(p, true);
        if (p < positions) add_pair(p, false);    // the other is not written: it might be NaN
        for (int g = 0; g < groups; ++g)
            for (int r = 0; r < kRows; ++r) {
                float* sum = part.sums + r * part.sum_stride + dim + 16 * g;
                store(sum, add(load(sum), add(even[g][r], odd[g][r])));
            }
    }
}

}  // namespace kvarn::KVARN_ISA
