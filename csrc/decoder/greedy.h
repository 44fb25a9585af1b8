// A small decoder that goes on with its own likeliest tokens: many passes in one call, for guesses of a draft model.
//
// A pass is what kvarn/models/decoder.py computes with one call for each product, attention and norm; for a model whose
// pass takes some ten microseconds, those calls take longer than the pass.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/attention.h"
#include "linear/linear.h"

namespace kvarn {

// A product with all that is done beside it (see LinearCall).
struct Product {
    PackedWeight weight;
    const float* norm;
    float eps;
    Activation activation;
    const float* bias;

    std::int64_t outputs() const { return weight.gated ? weight.out / 2 : weight.out; }
};

struct GreedyLayer {
    Product qkv, output, up, down;
    const float* head_norm;       // see AttentionCall::norm
    float head_eps;
    std::byte* keys;
    std::byte* values;
    float scale, softcap;
    std::int64_t kind;            // of window and rotation, see GreedyDecoder::kinds
};

struct LayerKind {
    std::int64_t window;          // see StepTables
    std::int64_t half_rotated;    // see AttentionCall
};

struct GreedyDecoder {
    HeadShape heads;
    PackedWeight embedding;
    Product head;
    std::vector<LayerKind> kinds;
    std::vector<GreedyLayer> layers;
};

// The first pass computes known tokens, each further one the token that the one before has drawn, of the first
// sequences only.
struct GreedyCall {
    StepTables step;                    // of the first pass
    const std::int64_t* token_ids;      // [T]
    const std::int64_t* active;         // [passes] sequences of each further pass, descending
    std::int64_t passes;
    std::int64_t vocab;                 // tokens that may be drawn: the first ones
    std::vector<const float*> cos;      // by kind: [T and the sequences of all further passes, half_rotated]
    std::vector<const float*> sin;
    std::int64_t* drawn;                // [1 + passes, S]
};

}  // namespace kvarn
