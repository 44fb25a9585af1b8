// Attention straight from the block table: one kernel for decode, chunked prefill and mixed steps.
//
// Keys are read in segments of kSegment positions, counted from position 0 of the sequence. The result of a segment
// (largest score, sum of weights, weighted values) depends on the query and the segment's keys alone, and segments
// are joined in ascending order. So a query gets the same bits alone, in a batch, in a chunk cut anywhere, and when a
// segment that several sequences share is read once for all of them (cascade).
//
// One block of one head in the cache, 16 positions (`D` numbers in a head, `P` = D rounded up to a multiple of 16):
//   keys    f32 [D][16]    bf16 [D / 2][16][2]    int8: float scale[16], then [D][16]
//   values  f32 [16][P]    bf16 [8][P][2] (pairs of positions)    int8: float scale[16], then [16][P]
// A block holds its heads one after another, a block's keys and its values stand in two caches.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/metadata.h"
#include "core/workspace.h"

namespace kvarn {

enum class KvType : int { f32 = 0, bf16 = 1, int8 = 2 };

constexpr std::int64_t kMaxHeadDim = 256;

struct HeadShape {
    std::int64_t query_heads;
    std::int64_t kv_heads;
    std::int64_t dim;          // a multiple of 2, at most kMaxHeadDim
    KvType kv_type;

    std::int64_t group() const { return query_heads / kv_heads; }
    std::int64_t padded_dim() const { return (dim + 15) / 16 * 16; }
    // Bytes of one block of one head, keys or values; a multiple of 64.
    std::int64_t block_head_bytes() const {
        const std::int64_t numbers = kBlock * padded_dim();
        switch (kv_type) {
            case KvType::f32: return 4 * numbers;
            case KvType::bf16: return 2 * numbers;
            case KvType::int8: break;
        }
        return 64 + numbers;
    }
    std::int64_t block_bytes() const { return kv_heads * block_head_bytes(); }
};

// One layer of one step: the step's keys and values go into the cache, then its queries read the cache.
//
// Each query and key head is normed (where `norm` is given) and rotated; queries are then multiplied by `scale`.
struct AttentionCall {
    HeadShape shape;
    const AttentionMetadata* metadata;
    const float* qkv;            // [T, (H + 2 G) D]: query heads, key heads, value heads
    std::int64_t qkv_stride;     // floats from token to token
    const float* cos;            // [T, half_rotated]: the first 2 half_rotated numbers of a head are rotated
    const float* sin;
    std::int64_t half_rotated;
    const float* norm;           // [H + G, D] weights of a root-mean-square norm of each head, or null
    float eps;                   // of that norm
    std::byte* keys;             // [blocks, block_bytes]
    std::byte* values;
    float scale;                 // of the scores
    float softcap;               // scores become softcap * tanh(score / softcap); 0: they stay
    float* out;                  // [T, H D]
    std::int64_t out_stride;
    Workspace* workspace;
    const float* sinks = nullptr;    // [H] scores that take a share of each head's weights; null: there are none

    const float* sink(std::int64_t head) const { return sinks ? sinks + head : nullptr; }
};

}  // namespace kvarn
