// Attention over latent rows (DeepSeek-V2 2024, in the absorbed form): one row a position, which all heads share as their
// key, and whose first numbers are their value.
//
// A query's blocks are read in ascending order by one piece of work, so its bits depend on its own sequence alone.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/metadata.h"

namespace kvarn {

constexpr std::int64_t kMaxLatent = 1024;

struct LatentCall {
    const AttentionMetadata* metadata;
    std::int64_t heads;          // H
    std::int64_t size;           // numbers in a row, at most kMaxLatent
    std::int64_t value_size;     // the first of them that are the value
    const float* queries;        // [T, H, size]
    const std::byte* cache;      // [blocks, kBlock, size], bfloat16 or float32
    bool rounded;                // bfloat16
    float scale;                 // of the scores
    float* out;                  // [T, H, value_size]
};

}  // namespace kvarn
