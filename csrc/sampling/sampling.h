// From logits to tokens: the most likely token of a row, and a token drawn from its filtered distribution.
//
// Draws are inverse CDFs over integer weights, as kvarn/kernels/sampling.py defines them:
//
//     w[i] = round(2^b * exp((logit[i] - max) / temperature)),    0 where w[i] < 2^b * min_p
//
// Weights are whole numbers held in float (b + log2(vocabulary) <= 52), so every sum in double precision is exact: it
// does not matter how rows are cut into pieces, in which order these are added, or which tokens are never looked at.
// The only rounding is elementwise.
#pragma once

#include <cstdint>

#include "core/workspace.h"

namespace kvarn {

// The largest logit of each row and its token, ties to the lowest id; a row with NaN gives its first NaN.
struct MostLikelyCall {
    const float* logits;     // [rows, vocab], stride floats from row to row
    std::int64_t rows, vocab, stride;
    std::int64_t* tokens;    // [rows]
    float* values;           // [rows]
    Workspace* workspace;
};

// A token for each of some rows. Throws std::invalid_argument where the weights of a row add up to nothing, or to NaN.
struct DrawCall {
    const float* logits;          // [.., vocab], stride floats from row to row; -inf masks a token
    std::int64_t vocab, stride;
    int bits;                     // b above
    const std::int64_t* rows;     // [count] rows of `logits`
    std::int64_t count;
    const float* row_max;         // [count] largest logit, finite
    const float* temperature;     // [count] > 0
    const std::int64_t* top_k;    // [count] 0 keeps all
    const double* top_p;          // [count] in (0, 1]
    const float* min_p;           // [count] in [0, 1]
    const double* uniforms;       // [count] in [0, 1)
    std::int64_t* tokens;         // [count]
    Workspace* workspace;
};

}  // namespace kvarn
