// Which tokens a grammar allows, applied to logits.
#pragma once

#include <cstdint>

namespace kvarn {

struct MaskCall {
    float* logits;                        // [.., vocab], stride floats from row to row
    std::int64_t vocab, stride;
    const std::int64_t* rows;             // [count]
    const std::uint32_t* const* masks;    // [count] a bit for each token, the first in the lowest; 0: not allowed
    std::int64_t count;
};

// Sets the logits of what is not allowed to minus infinity.
void mask_logits(const MaskCall& call);

}  // namespace kvarn
