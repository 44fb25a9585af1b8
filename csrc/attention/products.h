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

// Rows of queries multiplied together, and sums (in sixteens) up to which fewer rows take several blocks, or several
// groups of sixteen numbers of a head, at once: a sum waits for its own multiply-adds, so a few must be kept going.
#if KVARN_WIDE
constexpr int kMaxRows = 12;
constexpr int kSums = 24;
#else
constexpr int kMaxRows = 6;
constexpr int kSums = 6;
#endif
constexpr int kMostBeside = 4;
constexpr int beside(int rows) {
    int count = kMostBeside;
    while (rows * count > kSums) count /= 2;
    return count;
}

// Whether so many sums (in sixteens) leave few registers for all else; with fewer, GCC's own order is faster.
constexpr bool is_crowded(int sums) { return sums > 4; }

// Up to so many rows are done sooner than values come from memory: they are read in order, block by block, and sums are
// put aside after each. More rows keep their sums in registers over all blocks.
constexpr int kStreamRows = 2;

// A row of scores: sixteen for every block of a segment, and room for blocks computed in vain at its end.
constexpr std::int64_t kScoreStride = kSegment + (kMostBeside - 1) * kBlock;

// The blocks of one head in one segment.
struct SegmentBlocks {
    int count = 0;
    std::array<const std::byte*, kSegmentBlocks> keys, values;
};

// What is multiplied with them: blocks first_block to last_block, of which positions before last_position exist.
struct SegmentRows {
    int rows;
    int first_block, last_block, last_position;
    std::array<const float*, kMaxRows> queries;    // [D] each
    std::array<float*, kMaxRows> sums;             // [P] each: weighted values
    float* scores;                                 // [rows][kScoreStride]: scores, later weights
    const std::byte* after;                        // the block that is read after all of these
};

inline void prefetch(const std::byte* line) { __builtin_prefetch(line); }

// What was loaded before is loaded again when it is needed again: kept, it would take a register from the sums.
inline void load_anew() { asm volatile("" ::: "memory"); }

// Scores of kRows rows with kBlocks blocks; the lines of `next` are called into the cache meanwhile.
template <KvType type, int kRows, int kBlocks>
inline void score_blocks(const SegmentRows& part, const std::byte* const* keys, const std::byte* const* next,
                         std::int64_t dim, std::int64_t first_position) {
    constexpr std::int64_t kStepBytes = type == KvType::f32 ? 128 : type == KvType::bf16 ? 64 : 32;
    constexpr bool kCrowded = is_crowded(kRows * kBlocks);
    F16 sums[kBlocks][kRows];
#pragma GCC unroll 16
    for (int b = 0; b < kBlocks; ++b)
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) sums[b][r] = zero();
    for (std::int64_t d = 0; d < dim; d += 2) {
#pragma GCC unroll 4
        for (int b = 0; b < kBlocks; ++b)
            for (std::int64_t line = 0; line < kStepBytes; line += 64) prefetch(next[b] + d / 2 * kStepBytes + line);
#pragma GCC unroll 2
        for (int i = 0; i < 2; ++i) {
            if (kCrowded && i == 1) load_anew();
#pragma GCC unroll 4
            for (int b = 0; b < kBlocks; ++b) {
                const F16 key = load_keys<type>(keys[b], d, i);
#pragma GCC unroll 16
                for (int r = 0; r < kRows; ++r) {
                    const F16 sum = fma(splat(part.queries[r][d + i]), key, sums[b][r]);
                    sums[b][r] = kCrowded ? settled(sum) : sum;
                }
            }
        }
    }
#pragma GCC unroll 4
    for (int b = 0; b < kBlocks; ++b)
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) {
            if constexpr (type == KvType::int8) sums[b][r] = mul(sums[b][r], load(scales_of(keys[b])));
            store(part.scores + r * kScoreStride + first_position + b * kBlock, sums[b][r]);
        }
}

// Adds the weighted values of blocks first to last (one past), for kRows rows and kGroups times sixteen numbers of the head.
template <KvType type, int kRows, int kGroups>
inline void weigh_blocks(const SegmentRows& part, const SegmentBlocks& blocks, int first, int last, std::int64_t dim,
                         std::int64_t padded) {
    constexpr bool kCrowded = is_crowded(kRows * kGroups);
    F16 sums[kRows][kGroups];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
        for (int g = 0; g < kGroups; ++g) sums[r][g] = load(part.sums[r] + dim + 16 * g);
    for (int block = first; block < last; ++block) {
        const std::byte* values = blocks.values[block];
        const std::byte* next = block + 1 < part.last_block ? blocks.values[block + 1] : part.after;
        const float* weights = part.scores + block * kBlock;
        const int positions = std::min<int>(kBlock, part.last_position - block * static_cast<int>(kBlock));
        int p = 0;
        for (; p + 2 <= positions; p += 2) {
#pragma GCC unroll 4
            for (int g = 0; g < kGroups; ++g) {
                const std::byte* place = next + place_of_values<type>(p, dim + 16 * g, padded);
                prefetch(place);
                if constexpr (type != KvType::bf16) prefetch(place + padded * (type == KvType::f32 ? 4 : 1));
            }
#pragma GCC unroll 2
            for (int i = 0; i < 2; ++i)
#pragma GCC unroll 4
                for (int g = 0; g < kGroups; ++g) {
                    const F16 value = load_values<type>(values, p, dim + 16 * g, padded, i);
#pragma GCC unroll 16
                    for (int r = 0; r < kRows; ++r) {
                        const F16 sum = fma(splat(weights[r * kScoreStride + p + i]), value, sums[r][g]);
                        sums[r][g] = kCrowded ? settled(sum) : sum;
                    }
                }
        }
        // The other position of a last pair is not written: zero times what stands there might be NaN.
        if (p < positions)
#pragma GCC unroll 4
            for (int g = 0; g < kGroups; ++g) {
                const F16 value = load_values<type>(values, p, dim + 16 * g, padded, 0);
#pragma GCC unroll 16
                for (int r = 0; r < kRows; ++r)
                    sums[r][g] = fma(splat(weights[r * kScoreStride + p]), value, sums[r][g]);
            }
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
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
    constexpr int kSpan = kRows <= kStreamRows ? 1 : kSegmentBlocks;
    const std::int64_t padded = shape.padded_dim();
    for (int block = part.first_block; block < part.last_block; block += kSpan) {
        const int last = std::min(block + kSpan, part.last_block);
        std::int64_t dim = 0;
        for (; dim + 16 * kGroups <= padded; dim += 16 * kGroups)
            weigh_blocks<type, kRows, kGroups>(part, blocks, block, last, dim, padded);
        for (; dim < padded; dim += 16) weigh_blocks<type, kRows, 1>(part, blocks, block, last, dim, padded);
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
