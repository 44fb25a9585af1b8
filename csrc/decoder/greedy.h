// A small decoder that goes on with its own likeliest tokens: many passes in one call, for guesses of a draft model.
//
// For a model whose pass takes some ten microseconds, a call for each pass takes longer than the pass.
#pragma once

#include <cstdint>
#include <vector>

#include "decoder/layers.h"

namespace kvarn {

struct GreedyDecoder {
    const DecoderLayers* layers;
    LayerCaches caches;
    PackedWeight embedding;
    Product head;
    std::vector<std::int64_t> windows;    // by kind of layer, see StepTables
};

// The first pass computes known tokens, each further one the token that the one before has drawn, of the first
// sequences only.
struct GreedyCall {
    StepTables step;                    // of the first pass
    const std::int64_t* token_ids;      // [T]
    const std::int64_t* active;         // [passes] sequences of each further pass, descending
    std::int64_t passes;
    std::int64_t vocab;                 // tokens that may be drawn: the first ones
    std::vector<KindOfLayer> kinds;     // angles of the T tokens and of the sequences of all further passes; no plans
    std::int64_t* drawn;                // [1 + passes, S]
};

void run_greedy(Isa isa, const GreedyDecoder& decoder, const GreedyCall& call, const LayersMemory& memory);

}  // namespace kvarn
