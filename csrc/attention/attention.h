// Attention straight from the block table: one kernel for decode, chunked prefill and mixed steps.
//
// Keys are read in segments of kSegment positions, counted from position 0 of the sequence. The result of a segment
// (largest score, sum of weights, weighted values) depends on the query and the segment's keys alone, and segments
// are joined in ascending order. So a query gets the same bits alone, in a batch, in a chunk cut anywhere, and when a
// segment that several sequences share is read once for all of them (cascade).
//
// One block of one head in the cache, 16 positions (`D` numbers in a head):
//   keys    f32 [D][16]    bf16 [D / 2][16][2]    int8: float scale[16], then [D][16]
//   values  f32 [16][D]    bf16 [8][D][2] (pairs of positions)    int8: float scale[16], then [16][D]
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/workspace.h"

namespace kvarn {

constexpr std::int64_t kBlock = 16;       // positions of a block
constexpr std::int64_t kSegment = 256;    // positions of a segment

enum class KvType : int { f32 = 0, bf16 = 1, int8 = 2 };

struct HeadShape {
    std::int64_t query_heads;
    std::int64_t kv_heads;
    std::int64_t dim;          // a multiple of 2
    KvType kv_type;

    // Bytes of one block of one head, keys or values; a multiple of 64.
    std::size_t block_head_bytes() const;
};

}  // namespace kvarn
