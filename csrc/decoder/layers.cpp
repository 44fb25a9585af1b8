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

// The numbers between the products of a layer, at the width of the widest.
struct Between {
    float* qkv;
    float* mixed;     // what attention gives
    float* inner;     // what the MLP's first product gives, where qkv was
    float* half;      // a half's result that is normed before it is added

    Between(Workspace& memory, const std::vector<DecoderLayer>& layers, std::int64_t tokens) {
        std::int64_t qkv_size = 0, mixed_size = 0, inner_size = 0, half_size = 0;
        for (const DecoderLayer& layer : layers) {
            qkv_size = std::max(qkv_size, layer.qkv.outputs());
            mixed_size = std::max(mixed_size, layer.output.weight.in);
            inner_size = std::max(inner_size, layer.up.outputs());
            if (layer.attention_output.weight) half_size = std::max(half_size, layer.output.outputs());
            if (layer.mlp_output.weight) half_size = std::max(half_size, layer.down.outputs());
        }
        const auto take = [&](Carver carver) {
            qkv = inner = carver.take<float>(tokens * std::max(qkv_size, inner_size));
            mixed = carver.take<float>(tokens * mixed_size);
            half = carver.take<float>(tokens * half_size);
            return carver.used();
        };
        take(Carver(memory.reserve(take(Carver()))));
    }
};

class Pass {
  public:
    Pass(Isa isa, const LayersCall& call, const LayersMemory& memory)
        : isa_(isa), call_(call), memory_(memory), tokens_(call.kinds[0].plan->step.tokens),
          between_(memory.between, call.decoder->layers, tokens_) {}

    void through(const DecoderLayer& layer, std::byte* keys, std::byte* values) {
        const DecoderLayers& decoder = *call_.decoder;
        const KindOfLayer& kind = call_.kinds[layer.kind];
        multiplied(layer.qkv, call_.hidden, between_.qkv, false);
        attend(isa_, {decoder.heads, kind.plan, between_.qkv, layer.qkv.outputs(), kind.cos, kind.sin,
                      kind.half_rotated, layer.heads.weight, layer.heads.eps, keys, values, decoder.scale,
                      decoder.softcap, between_.mixed, layer.output.weight.in, &memory_.kernels});
        add(layer.output, between_.mixed, layer.attention_output);
        multiplied(layer.up, call_.hidden, between_.inner, false);
        add(layer.down, between_.inner, layer.mlp_output);
    }

  private:
    void multiplied(const Product& product, const float* x, float* out, bool accumulate) {
        multiply_by(isa_, product, x, tokens_, out, accumulate, call_.adapters, memory_);
    }

    void add(const Product& last, const float* x, const NormWeight& norm) {
        if (!norm.weight) return multiplied(last, x, call_.hidden, true);
        multiplied(last, x, between_.half, false);
        const std::int64_t size = last.outputs();
        norm_rows(isa_, {between_.half, tokens_, size, size, norm.weight, norm.eps, call_.hidden, size, true});
    }

    const Isa isa_;
    const LayersCall& call_;
    const LayersMemory& memory_;
    const std::int64_t tokens_;
    const Between between_;
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
