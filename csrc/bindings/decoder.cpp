#include <nanobind/stl/vector.h>

#include "bindings/backend.h"
#include "bindings/topics.h"
#include "decoder/greedy.h"
#include "decoder/layers.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace kvarn {

namespace {

using Address = std::uintptr_t;
using Addresses = std::vector<Address>;

LayersMemory memory_of(Backend& self) { return {self.workspace, self.deltas, self.intermediate}; }

std::vector<std::byte*> bytes_at(const Addresses& addresses) {
    std::vector<std::byte*> out;
    out.reserve(addresses.size());
    for (const Address each : addresses) out.push_back(at<std::byte>(each));
    return out;
}

// `plans`: empty where they are made later.
std::vector<KindOfLayer> kinds_of(const std::vector<const AttentionMetadata*>& plans, const Addresses& cos,
                                  const Addresses& sin, const std::vector<std::int64_t>& half_rotated) {
    std::vector<KindOfLayer> kinds;
    for (std::size_t kind = 0; kind < cos.size(); ++kind)
        kinds.push_back({plans.empty() ? nullptr : plans[kind], at<const float>(cos[kind]), at<const float>(sin[kind]),
                         half_rotated[kind]});
    return kinds;
}

void bind_product(nb::module_& m) {
    nb::class_<NormWeight>(m, "NormWeight", "The weight of a root-mean-square norm, which must outlive it; 0: no norm.")
        .def("__init__", [](NormWeight* self, Address weight, float eps) {
            new (self) NormWeight{at<const float>(weight), eps};
        }, "weight"_a = 0, "eps"_a = 0.0f);
    nb::class_<Product>(m, "Product", "A packed weight with its norm, activation and bias, which must outlive it.")
        .def("__init__",
             [](Product* self, const PackedWeight& weight, const NormWeight& norm, int activation, Address bias,
                std::int64_t adapter_layer) {
                 new (self) Product{weight, norm, static_cast<Activation>(activation), at<const float>(bias),
                                    adapter_layer};
             },
             "weight"_a, "norm"_a, "activation"_a, "bias"_a, "adapter_layer"_a);
}

void bind_layers(nb::module_& m, BackendClass& backend) {
    nb::class_<DecoderLayers>(m, "DecoderLayers", "What they are made of must outlive them.")
        .def("__init__",
             [](DecoderLayers* self, std::int64_t query_heads, std::int64_t kv_heads, std::int64_t dim, int kv_type,
                float scale, float softcap) {
                 new (self) DecoderLayers{
                     {query_heads, kv_heads, dim, static_cast<KvType>(kv_type)}, scale, softcap, {}};
             },
             "query_heads"_a, "kv_heads"_a, "dim"_a, "kv_type"_a, "scale"_a, "softcap"_a)
        .def("add",
             [](DecoderLayers& self, const Product& qkv, const Product& output, const Product& up, const Product& down,
                const NormWeight& heads, const NormWeight& attention_output, const NormWeight& mlp_output,
                std::int64_t kind) {
                 self.layers.push_back({qkv, output, up, down, heads, attention_output, mlp_output, kind});
             },
             "qkv"_a, "output"_a, "up"_a, "down"_a, "heads"_a, "attention_output"_a, "mlp_output"_a, "kind"_a);
    backend.def(
        "run_layers",
        [](Backend& self, const DecoderLayers& layers, std::int64_t first, std::int64_t last,
           const std::vector<const AttentionMetadata*>& plans, const Addresses& cos, const Addresses& sin,
           const std::vector<std::int64_t>& half_rotated, const Addresses& keys, const Addresses& values,
           const AdapterBatch* adapters, Address hidden) {
            const std::vector<KindOfLayer> kinds = kinds_of(plans, cos, sin, half_rotated);
            const LayerCaches caches{bytes_at(keys), bytes_at(values)};
            const LayersCall call{&layers, first, last, kinds.data(), &caches, adapters, at<float>(hidden)};
            const Turn turn(self);
            run_layers(self.isa, call, memory_of(self));
        },
        "layers"_a, "first"_a, "last"_a, "plans"_a, "cos"_a, "sin"_a, "half_rotated"_a, "keys"_a, "values"_a,
        "adapters"_a.none(), "hidden"_a);
}

void bind_greedy(nb::module_& m, BackendClass& backend) {
    nb::class_<GreedyDecoder>(m, "GreedyDecoder", "What it is made of must outlive it.")
        .def("__init__",
             [](GreedyDecoder* self, const DecoderLayers& layers, const Addresses& keys, const Addresses& values,
                const PackedWeight& embedding, const Product& head, const std::vector<std::int64_t>& windows) {
                 new (self) GreedyDecoder{&layers, {bytes_at(keys), bytes_at(values)}, embedding, head, windows};
             },
             nb::keep_alive<1, 2>(), "layers"_a, "keys"_a, "values"_a, "embedding"_a, "head"_a, "windows"_a);
    backend.def(
        "greedy",
        [](Backend& self, const GreedyDecoder& decoder, const AttentionMetadata& metadata, Address token_ids, Address active,
           std::int64_t passes, std::int64_t vocab, const Addresses& cos, const Addresses& sin,
           const std::vector<std::int64_t>& half_rotated, Address drawn) {
            const GreedyCall call{metadata.step,           at<const std::int64_t>(token_ids),
                                  at<const std::int64_t>(active),
                                  passes,              vocab,
                                  kinds_of({}, cos, sin, half_rotated), at<std::int64_t>(drawn)};
            const Turn turn(self);
            run_greedy(self.isa, decoder, call, memory_of(self));
        },
        "decoder"_a, "metadata"_a, "token_ids"_a, "active"_a, "passes"_a, "vocab"_a, "cos"_a, "sin"_a, "half_rotated"_a,
        "drawn"_a);
}

}  // namespace

void bind_decoder(nb::module_& m, BackendClass& backend) {
    bind_product(m);
    bind_layers(m, backend);
    bind_greedy(m, backend);
}

}  // namespace kvarn
