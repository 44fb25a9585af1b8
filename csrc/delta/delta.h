// The gated delta rule (Gated DeltaNet, Yang et al. 2024) of one layer, for the tokens of one step.
//
// Each column of a head's state is computed by itself, token by token, its sums over the rows in ascending order. So an
// output's bits depend on its own sequence alone, wherever its prompt is cut.
#pragma once

#include <cstdint>

#include "core/workspace.h"

namespace kvarn {

struct DeltaShape {
    std::int64_t key_heads, value_heads;   // value_heads is a multiple of key_heads
    std::int64_t key_dim, value_dim;
    std::int64_t window;                   // tokens that the convolution sees, its own included

    std::int64_t keys() const { return key_heads * key_dim; }
    std::int64_t values() const { return value_heads * value_dim; }
    std::int64_t channels() const { return 2 * keys() + values(); }
};

// A copy of a state that is kept: of one sequence of the step, after so many tokens of its row.
struct DeltaSave {
    std::int64_t sequence, tokens, place;
};

struct DeltaCall {
    DeltaShape shape;
    std::int64_t sequences, tokens;
    const std::int32_t* query_starts;   // [sequences + 1]
    const std::int64_t* places;         // [sequences]: where each one's state is
    const DeltaSave* saves;             // [num_saves], in ascending order
    std::int64_t num_saves;
    const float* projected;             // [tokens, channels + values]: queries, keys, values; then gates
    const float* rates;                 // [tokens, 2 value_heads]
    const float* convolution;           // [window, channels], the oldest token's first
    const float* decay;                 // [value_heads]
    const float* decay_bias;            // [value_heads]
    const float* norm;                  // [value_dim]
    float eps;
    float* matrices;                    // [places, value_heads, key_dim, value_dim]
    float* inputs;                      // [places, window - 1, channels], the newest last
    float* out;                         // [tokens, values]
    Workspace* workspace;
};

}  // namespace kvarn
