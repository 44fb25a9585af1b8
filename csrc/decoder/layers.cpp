#include "decoder/layers.h"

#include <algorithm>

#include "elementwise/norm.h"
#include "linear/multiply.h"

namespace kvarn {

#define KVARN_DECLARE(name) \
    namespace name { \
        void attention(const AttentionCall&); \
        void rms_norm(const RmsNormCall&); \
    }
KVARN_FOR_EACH_ISA(KVARN_DECLARE)
#undef KVARN_DECLARE

namespace {

void attend(Isa isa, const AttentionCall& call) { KVARN_CALL(isa, attention, call); }

void norm_rows(Isa isa, const RmsNormCall& call) { KVARN_CALL(isa, rms_norm, call); }

// Intermediate results of a layer, of the width of the widest layer's.
struct Intermediate {
    float* qkv;
    float* mixed;     // what attention gives
    float* inner;     // what the MLP's first product gives, where qkv was
    float* to_norm;   // the result of attention or MLP that is normed before it is added

    Intermediate(Workspace& memory, const std::vector<DecoderLayer>& layers, std::int64_t tokens) {
        std::int64_t qkv_size = 0, mixed_size = 0, inner_size = 0, norm_size = 0;
        for (const DecoderLayer& layer : layers) {
            qkv_size = std::max(qkv_size, layer.qkv.outputs());
            mixed_size = std::max(mixed_size, layer.output.weight.in);
            inner_size = std::max(inner_size, layer.up.outputs());
            if (layer.attention_output.weight) norm_size = std::max(norm_size, layer.output.outputs());
            if (layer.mlp_output.weight) norm_size = std::max(norm_size, layer.down.outputs());
        }
        const auto take = [&](Carver carver) {
            qkv = inner = carver.take<float>(tokens * std::max(qkv_size, inner_size));
            mixed = carver.take<float>(tokens * mixed_size);
            to_norm = carver.take<float>(tokens * norm_size);
            return carver.used();
        };
        take(Carver(memory.reserve(take(Carver()))));
    }
};

class Pass {
  public:
    Pass(Isa isa, const LayersCall& call, const LayersMemory& memory)
        : isa_(isa), call_(call), memory_(memory), tokens_(call.kinds[0].metadata->step.tokens),
          intermediate_(memory.intermediate, call.decoder->layers, tokens_) {}

    void through(const DecoderLayer& layer, std::byte* keys, std::byte* values) {
        const DecoderLayers& decoder = *call_.decoder;
        const KindOfLayer& kind = call_.kinds[layer.kind];
        multiplied(layer.qkv, call_.hidden, intermediate_.qkv, false);
        attend(isa_, {decoder.heads, kind.metadata, intermediate_.qkv, layer.qkv.outputs(), kind.cos, kind.sin,
                      kind.half_rotated, layer.heads.weight, layer.heads.eps, keys, values, decoder.scale,
                      decoder.softcap, intermediate_.mixed, layer.output.weight.in, &memory_.kernels});
        add(layer.output, intermediate_.mixed, layer.attention_output);
        multiplied(layer.up, call_.hidden, intermediate_.inner, false);
        add(layer.down, intermediate_.inner, layer.mlp_output);
    }

  private:
    void multiplied(const Product& product, const float* x, float* out, bool accumulate) {
        multiply_by(isa_, product, x, tokens_, out, accumulate, call_.adapters, memory_);
    }

    void add(const Product& last, const float* x, const NormWeight& norm) {
        if (!norm.weight) return multiplied(last, x, call_.hidden, true);
        multiplied(last, x, intermediate_.to_norm, false);
        const std::int64_t size = last.outputs();
        norm_rows(isa_, {intermediate_.to_norm, tokens_, size, size, norm.weight, norm.eps, call_.hidden, size, true});
    }

    const Isa isa_;
    const LayersCall& call_;
    const LayersMemory& memory_;
    const std::int64_t tokens_;
    const Intermediate intermediate_;
};

}  // namespace

void multiply_by(Isa isa, const Product& product, const float* x, std::int64_t rows, float* out, bool accumulate,
                 const AdapterBatch* adapters, const LayersMemory& memory) {
    const LinearCall call{product.weight, x, rows, product.weight.in, product.norm.weight, product.norm.eps,
                          product.activation, product.bias, out, product.outputs(), accumulate, nullptr, nullptr,
                          &memory.kernels};
    const bool adapted = adapters && product.adapter_layer >= 0;
    multiply(isa, call, adapted ? adapters : nullptr, product.adapter_layer, memory.deltas);
}

void run_layers(Isa isa, const LayersCall& call, const LayersMemory& memory) {
    Pass pass(isa, call, memory);
    for (std::int64_t i = call.first; i < call.last; ++i)
        pass.through(call.decoder->layers[i], call.caches->keys[i], call.caches->values[i]);
}

}  // namespace kvarn
