// The layers of a decoder in one call: what kvarn/models/layer.py computes with a call for each product and attention.
//
// Between those calls the interpreter works alone while the threads wait: over 100 microseconds a layer, since the weights
// have evicted its code from the caches. docs/internals/kernels.md says what that took of a step.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/attention.h"
#include "core/isa.h"
#include "core/workspace.h"
#include "linear/adapters.h"
#include "linear/linear.h"

namespace kvarn {

struct NormWeight {
    const float* weight = nullptr;    // null: there is no norm
    float eps = 0.0f;
};

// A product with all that is done beside it (see LinearCall).
struct Product {
    PackedWeight weight;
    NormWeight norm;
    Activation activation;
    const float* bias;
    std::int64_t adapter_layer;       // see AdapterBatch; -1: adapters do not change it

    std::int64_t outputs() const { return weight.gated ? weight.out / 2 : weight.out; }
};

// Two halves, each added to the residual stream: attention between two products, and a gated product and another.
struct DecoderLayer {
    Product qkv, output, up, down;
    NormWeight heads;                        // of each query and key head, see AttentionCall::norm
    NormWeight attention_output, mlp_output; // of a half's result, before it is added
    std::int64_t kind;                       // see LayersCall
};

struct DecoderLayers {
    HeadShape heads;
    float scale, softcap;             // see AttentionCall
    std::vector<DecoderLayer> layers;
};

// What layers that see as far and rotate by the same angles share in a pass.
struct KindOfLayer {
    const AttentionMetadata* metadata;
    const float* cos;                 // see AttentionCall
    const float* sin;
    std::int64_t half_rotated;
};

// A cache: its keys and values by layer.
struct LayerCaches {
    std::vector<std::byte*> keys, values;
};

struct LayersCall {
    const DecoderLayers* decoder;
    std::int64_t first, last;         // of its layers, `last` not among them
    const KindOfLayer* kinds;         // one for each kind of layer
    const LayerCaches* caches;        // of all its layers
    const AdapterBatch* adapters;     // or null
    float* hidden;                    // [tokens of the plans, size]: the residual stream, in place
};

// Scratch memory of a call: of its kernels, of what adapters add, and of the intermediate results of a layer.
struct LayersMemory {
    Workspace& kernels;
    Workspace& deltas;
    Workspace& intermediate;
};

void run_layers(Isa isa, const LayersCall& call, const LayersMemory& memory);

// A product [rows, outputs] of contiguous rows; accumulate: it is added to `out`.
void multiply_by(Isa isa, const Product& product, const float* x, std::int64_t rows, float* out, bool accumulate,
                 const AdapterBatch* adapters, const LayersMemory& memory);

}  // namespace kvarn
