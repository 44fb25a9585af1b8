#include "decoder/greedy.h"

#include <algorithm>

#include <nanobind/stl/vector.h>

#include "bindings/backend.h"
#include "bindings/topics.h"
#include "linear/pack.h"
#include "sampling/sampling.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace kvarn {

#define KVARN_DECLARE(name) \
    namespace name { \
        void linear_float(const LinearCall&); \
        void linear_integer(const LinearCall&); \
        void attention(const AttentionCall&); \
        void most_likely(const MostLikelyCall&); \
    }
KVARN_FOR_EACH_ISA(KVARN_DECLARE)
#undef KVARN_DECLARE

namespace {

bool is_integer(const PackedWeight& weight) { return weight.format == Format::int8 || weight.format == Format::int4; }

void multiply(Isa isa, const LinearCall& call) {
    if (is_integer(call.weight)) {
        KVARN_CALL(isa, linear_integer, call);
    }
    KVARN_CALL(isa, linear_float, call);
}

void attend(Isa isa, const AttentionCall& call) { KVARN_CALL(isa, attention, call); }

void draw(Isa isa, const MostLikelyCall& call) { KVARN_CALL(isa, most_likely, call); }

// One call: its passes, and the numbers between their operations.
class Run {
  public:
    Run(Backend& backend, const GreedyDecoder& decoder, const GreedyCall& call)
        : backend_(backend), decoder_(decoder), call_(call) {
        const std::int64_t rows = std::max(call.step.tokens, call.step.sequences);
        hidden_.resize(rows * decoder.embedding.in);
        logits_.resize(call.step.sequences * decoder.head.outputs());
        largest_.resize(call.step.sequences);
        std::int64_t inner = 0;
        for (const GreedyLayer& layer : decoder.layers) inner = std::max(inner, layer.up.outputs());
        inner_.resize(rows * inner);
        qkv_.resize(rows * (decoder.heads.query_heads + 2 * decoder.heads.kv_heads) * decoder.heads.dim);
        mixed_.resize(rows * decoder.heads.query_heads * decoder.heads.dim);
    }

    void all_passes() {
        StepTables step = call_.step;
        std::int64_t first_angle = step.tokens;
        pass(step, call_.token_ids, 0, call_.drawn);
        std::vector<std::int32_t> starts(step.sequences + 1), lens(step.context_lens, step.context_lens + step.sequences);
        for (std::int64_t s = 0; s <= step.sequences; ++s) starts[s] = static_cast<std::int32_t>(s);
        std::vector<std::int64_t> slots(step.sequences);
        step.query_starts = starts.data();
        step.context_lens = lens.data();
        step.slots = slots.data();
        for (std::int64_t n = 0; n < call_.passes; ++n) {
            step.sequences = step.tokens = call_.active[n];
            for (std::int64_t s = 0; s < step.sequences; ++s) {
                const std::int64_t position = lens[s]++;
                slots[s] = step.block_tables[s * step.table_stride + position / kBlock] * kBlock + position % kBlock;
            }
            std::int64_t* drawn = call_.drawn + n * call_.step.sequences;
            pass(step, drawn, first_angle, drawn + call_.step.sequences);
            first_angle += step.tokens;
        }
    }

  private:
    void pass(const StepTables& step, const std::int64_t* token_ids, std::int64_t first_angle, std::int64_t* drawn) {
        const std::int64_t size = decoder_.embedding.in;
        (is_integer(decoder_.embedding) ? unpack_integer : unpack_float)(decoder_.embedding, token_ids, step.tokens,
                                                                         hidden_.data());
        std::vector<AttentionPlan> plans;
        plans.reserve(decoder_.kinds.size());
        for (const LayerKind& kind : decoder_.kinds) {
            StepTables own = step;
            own.window = kind.window;
            plans.emplace_back(own);
        }
        for (const GreedyLayer& layer : decoder_.layers) layer_forward(layer, plans[layer.kind], first_angle);
        for (std::int64_t s = 0; s < step.sequences; ++s) {  // the last token of each
            const float* last = &hidden_[(step.query_starts[s + 1] - 1) * size];
            std::copy(last, last + size, &hidden_[s * size]);
        }
        multiply_by(decoder_.head, hidden_.data(), step.sequences, logits_.data(), false);
        draw(backend_.isa, {logits_.data(), step.sequences, call_.vocab, decoder_.head.outputs(), drawn,
                            largest_.data(), &backend_.workspace});
    }

    void layer_forward(const GreedyLayer& layer, const AttentionPlan& plan, std::int64_t first_angle) {
        const std::int64_t tokens = plan.step.tokens, half = decoder_.kinds[layer.kind].half_rotated;
        multiply_by(layer.qkv, hidden_.data(), tokens, qkv_.data(), false);
        attend(backend_.isa, {decoder_.heads, &plan, qkv_.data(), layer.qkv.outputs(),
                              call_.cos[layer.kind] + first_angle * half, call_.sin[layer.kind] + first_angle * half,
                              half, layer.head_norm, layer.head_eps, layer.keys, layer.values, layer.scale,
                              layer.softcap, mixed_.data(), layer.output.weight.in, &backend_.workspace});
        multiply_by(layer.output, mixed_.data(), tokens, hidden_.data(), true);
        multiply_by(layer.up, hidden_.data(), tokens, inner_.data(), false);
        multiply_by(layer.down, inner_.data(), tokens, hidden_.data(), true);
    }

    void multiply_by(const Product& product, const float* x, std::int64_t rows, float* out, bool accumulate) {
        multiply(backend_.isa, {product.weight, x, rows, product.weight.in, product.norm, product.eps,
                                product.activation, product.bias, out, product.outputs(), accumulate, nullptr,
                                nullptr, &backend_.workspace});
    }

    Backend& backend_;
    const GreedyDecoder& decoder_;
    const GreedyCall& call_;
    std::vector<float> hidden_, qkv_, mixed_, inner_, logits_, largest_;
};

using Address = std::uintptr_t;

}  // namespace

void bind_greedy(nb::module_& m, BackendClass& backend) {
    nb::class_<Product>(m, "Product", "A packed weight with its norm, activation and bias, which must outlive it.")
        .def("__init__",
             [](Product* self, const PackedWeight& weight, Address norm, float eps, int activation, Address bias) {
                 new (self) Product{weight, at<const float>(norm), eps, static_cast<Activation>(activation),
                                    at<const float>(bias)};
             },
             "weight"_a, "norm"_a, "eps"_a, "activation"_a, "bias"_a);
    nb::class_<GreedyDecoder>(m, "GreedyDecoder", "What it is made of must outlive it.")
        .def("__init__",
             [](GreedyDecoder* self, std::int64_t query_heads, std::int64_t kv_heads, std::int64_t dim, int kv_type,
                const PackedWeight& embedding, const Product& head) {
                 new (self) GreedyDecoder{
                     {query_heads, kv_heads, dim, static_cast<KvType>(kv_type)}, embedding, head, {}, {}};
             },
             "query_heads"_a, "kv_heads"_a, "dim"_a, "kv_type"_a, "embedding"_a, "head"_a)
        .def("add_kind",
             [](GreedyDecoder& self, std::int64_t window, std::int64_t half_rotated) {
                 self.kinds.push_back({window, half_rotated});
             },
             "window"_a, "half_rotated"_a)
        .def("add_layer",
             [](GreedyDecoder& self, const Product& qkv, const Product& output, const Product& up, const Product& down,
                Address head_norm, float head_eps, Address keys, Address values, float scale, float softcap,
                std::int64_t kind) {
                 self.layers.push_back({qkv, output, up, down, at<const float>(head_norm), head_eps,
                                        at<std::byte>(keys), at<std::byte>(values), scale, softcap, kind});
             },
             "qkv"_a, "output"_a, "up"_a, "down"_a, "head_norm"_a, "head_eps"_a, "keys"_a, "values"_a, "scale"_a,
             "softcap"_a, "kind"_a);
    backend.def(
        "greedy",
        [](Backend& self, const GreedyDecoder& decoder, const AttentionPlan& plan, Address token_ids, Address active,
           std::int64_t passes, std::int64_t vocab, const std::vector<Address>& cos, const std::vector<Address>& sin, Address drawn) {
            GreedyCall call{plan.step, at<const std::int64_t>(token_ids), at<const std::int64_t>(active), passes, vocab,
                            {}, {}, at<std::int64_t>(drawn)};
            for (const Address each : cos) call.cos.push_back(at<const float>(each));
            for (const Address each : sin) call.sin.push_back(at<const float>(each));
            const Turn turn(self);
            Run(self, decoder, call).all_passes();
        },
        "decoder"_a, "plan"_a, "token_ids"_a, "active"_a, "passes"_a, "vocab"_a, "cos"_a, "sin"_a, "drawn"_a);
}

}  // namespace kvarn
