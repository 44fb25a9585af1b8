// The first half of a layer's attention: queries made ready, keys and values put into the cache.
#pragma once

#include "attention/attention.h"

namespace kvarn::KVARN_ISA {

constexpr std::int64_t kStepDims = 32;    // numbers of a head that one tile product takes

// A step's queries, scaled: float32 [T, H, D], or, as tiles take them, bfloat16 [G, T, H / G, D in whole kStepDims],
// padded with zeros. One of both is given.
struct QueryPlace {
    float* floats;
    std::uint16_t* rounded;
    const HeadShape& shape;
    std::int64_t tokens;

    std::int64_t rounded_dim() const { return (shape.dim + kStepDims - 1) / kStepDims * kStepDims; }
    float* float_row(std::int64_t token, std::int64_t head) const {
        return floats + (token * shape.query_heads + head) * shape.dim;
    }
    std::uint16_t* rounded_row(std::int64_t token, std::int64_t head) const {
        const std::int64_t group = shape.group();
        return rounded + ((head / group * tokens + token) * group + head % group) * rounded_dim();
    }
};

// Norms and rotates query and key heads; keys and values go to their slots, scaled queries to their place.
void write_step(const AttentionCall& call, const QueryPlace& queries);

}  // namespace kvarn::KVARN_ISA
