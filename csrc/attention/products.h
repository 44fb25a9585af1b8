// The two matrix products of attention, over one segment of keys and values for a few rows of queries.
//
// Order of sums, whatever the tiling: a score is one chain over the numbers of a head, a weighted value one chain over
// positions, both ascending. Tiling may therefore differ from one instruction set to the next, and from one number of
// rows to the next, without changing a bit of a row.
#pragma once

#include <array>
#include <utility>

#include "attention/attention.h"
#include "attention/kv_block.h"
#include "simd/simd.h"

namespace kvarn::KVARN_ISA {

constexpr int kMaxRows = 6;         // rows of queries multiplied together
constexpr int kAccumulators = 4;    // at least so many F16 sums are kept going at once, to hide their latency

// Blocks (or groups of sixteen numbers of a head) multiplied together with so many rows.
constexpr int beside(int rows) { return rows == 1 ? kAccumulators : rows == 2 ? kAccumulators / 2 : 1; }

// A row of scores: sixteen for every block of a segment, and room for blocks computed in vain at its end.
constexpr std::int64_t kScoreStride = kSegment + (kAccumulators - 1) * kBlock;

// The blocks of one head in one segment.
struct SegmentBlocks {
    std::array<const std::byte*, kSegmentBlocks> keys, values;
};

// What is multiplied with them: blocks first_block to last_block, of which positions before last_position exist.
struct SegmentRows {
    int rows;
    int first_block, last_block, last_position;
    std::array<const float*, kMaxRows> queries;    // [D] each
    std::array<float*, kMaxRows> sums;             // [P] each: weighted values
    float* scores;                                 // [rows][kScoreStride]: scores, later weights
};

inline void prefetch(const std::byte* line) { __builtin_prefetch(line); }

// Scores of kRows rows with kBlocks blocks; the lines of `next` are called into the cache meanwhile.
template <KvType type, int kRows, int kBlocks>
inline void score_blocks(const SegmentRows& part, const std::byte* const* keys, const std::byte* const* next,
                         std::int64_t dim, std::int64_t first_position) {
    constexpr std::int64_t kStepBytes = type == KvType::f32 ? 128 : type == KvType::bf16 ? 64 : 32;
    F16 sums[kBlocks][kRows];
#pragma GCC unroll 16
    for (int b = 0; b < kBlocks; ++b)
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) sums[b][r] = zero();
    for (std::int64_t d = 0; d < dim; d += 2) {
#pragma GCC unroll 16
        for (int b = 0; b < kBlocks; ++b) {
            for (std::int64_t line = 0; line < kStepBytes; line += 64) prefetch(next[b] + d / 2 * kStepBytes + line);
            const KvPair key = load_keys<type>(keys[b], d);
#pragma GCC unroll 16
            for (int r = 0; r < kRows; ++r) sums[b][r] = fma(splat(part.queries[r][d]), key.first, sums[b][r]);
#pragma GCC unroll 16
            for (int r = 0; r < kRows; ++r) sums[b][r] = fma(splat(part.queries[r][d + 1]), key.second, sums[b][r]);
        }
    }
#pragma GCC unroll 16
    for (int b = 0; b < kBlocks; ++b)
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) {
            if constexpr (type == KvType::int8) sums[b][r] = mul(sums[b][r], load(scales_of(keys[b])));
            store(part.scores + r * kScoreStride + first_position + b * kBlock, sums[b][r]);
        }
}

// Adds the weighted values of one block, for kRows rows and kGroups times sixteen numbers of the head.
template <KvType type, int kRows, int kGroups>
inline void weigh_block(const SegmentRows& part, const std::byte* values, const std::byte* next, std::int64_t dim,
                        std::int64_t padded, int first_position, int positions) {
    F16 sums[kRows][kGroups];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 16
        for (int g = 0; g < kGroups; ++g) sums[r][g] = load(part.sums[r] + dim + 16 * g);
    const float* weights = part.scores + first_position;
    constexpr std::int64_t kNumberBytes = type == KvType::f32 ? 4 : type == KvType::bf16 ? 2 : 1;
    int p = 0;
    for (; p + 2 <= positions; p += 2) {
#pragma GCC unroll 16
        for (int g = 0; g < kGroups; ++g) {
            const KvPair value = load_values<type>(values, p, dim + 16 * g, padded);
            const std::int64_t place = type == KvType::bf16 ? p * padded * 2 + (dim + 16 * g) * 4
                                                            : (p * padded + dim + 16 * g) * kNumberBytes;
            prefetch(next + place);
            if constexpr (type != KvType::bf16) prefetch(next + place + padded * kNumberBytes);
#pragma GCC unroll 16
            for (int r = 0; r < kRows; ++r)
                sums[r][g] = fma(splat(weights[r * kScoreStride + p]), value.first, sums[r][g]);
#pragma GCC unroll 16
            for (int r = 0; r < kRows; ++r)
                sums[r][g] = fma(splat(weights[r * kScoreStride + p + 1]), value.second, sums[r][g]);
        }
    }
    // Nobody has written the other position of a last pair: zero times what stands there might be NaN.
    if (p < positions)
        for (int g = 0; g < kGroups; ++g) {
            const KvPair value = load_values<type>(values, p, dim + 16 * g, padded);
            for (int r = 0; r < kRows; ++r)
                sums[r][g] = fma(splat(weights[r * kScoreStride + p]), value.first, sums[r][g]);
        }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 16
        for (int g = 0; g < kGroups; ++g) store(part.sums[r] + dim + 16 * g, sums[r][g]);
}

template <KvType type, int kRows>
void score_rows(const SegmentRows& part, const SegmentBlocks& blocks, const HeadShape& shape) {
    constexpr int kBlocks = beside(kRows);
    const int last = part.last_block - 1;
    for (int block = part.first_block; block <= last; block += kBlocks) {
        const std::byte *keys[kBlocks], *next[kBlocks];
        for (int b = 0; b < kBlocks; ++b) {
            keys[b] = blocks.keys[std::min(block + b, last)];
            const int after = block + kBlocks + b;
            next[b] = after <= last ? blocks.keys[after] : blocks.values[std::min(part.first_block + b, last)];
        }
        score_blocks<type, kRows, kBlocks>(part, keys, next, shape.dim, block * kBlock);
    }
}

template <KvType type, int kRows>
void weigh_rows(const SegmentRows& part, const SegmentBlocks& blocks, const HeadShape& shape) {
    constexpr int kGroups = beside(kRows);
    const std::int64_t padded = shape.padded_dim();
    for (int block = part.first_block; block < part.last_block; ++block) {
        const std::byte* values = blocks.values[block];
        const std::byte* next = blocks.values[std::min(block + 1, part.last_block - 1)];
        const int first = block * kBlock, positions = std::min<int>(kBlock, part.last_position - first);
        std::int64_t dim = 0;
        for (; dim + 16 * kGroups <= padded; dim += 16 * kGroups)
            weigh_block<type, kRows, kGroups>(part, values, next, dim, padded, first, positions);
        for (; dim < padded; dim += 16) weigh_block<type, kRows, 1>(part, values, next, dim, padded, first, positions);
    }
}

using Product = void (*)(const SegmentRows&, const SegmentBlocks&, const HeadShape&);

template <KvType type>
struct Products {
    std::array<Product, kMaxRows> score, weigh;
    template <std::size_t... i>
    static constexpr Products make(std::index_sequence<i...>) {
        return {{score_rows<type, i + 1>...}, {weigh_rows<type, i + 1>...}};
    }
};
template <KvType type>
constexpr Products<type> kProducts = Products<type>::make(std::make_index_sequence<kMaxRows>{});

// part.scores = queries * keys
template <KvType type>
void score(const SegmentRows& part, const SegmentBlocks& blocks, const HeadShape& shape) {
    kProducts<type>.score[part.rows - 1](part, blocks, shape);
}

// part.sums += part.scores * values
template <KvType type>
void weigh(const SegmentRows& part, const SegmentBlocks& blocks, const HeadShape& shape) {
    kProducts<type>.weigh[part.rows - 1](part, blocks, shape);
}

}  // namespace kvarn::KVARN_ISA
