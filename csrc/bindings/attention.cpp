#include <omp.h>

#include "attention/attention.h"
#include "attention/latent.h"
#include "bindings/backend.h"
#include "bindings/topics.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace kvarn {

#define KVARN_DECLARE(name) \
    namespace name { \
        void attention(const AttentionCall&); \
        void latent_attention(const LatentCall&); \
    }
KVARN_FOR_EACH_ISA(KVARN_DECLARE)
#undef KVARN_DECLARE

namespace {

using Address = std::uintptr_t;

void make_metadata(AttentionMetadata* self, Address query_starts, Address context_lens, Address block_tables,
               std::int64_t table_stride, std::int64_t table_blocks, Address slots, std::int64_t sequences,
               std::int64_t tokens, std::int64_t window, bool causal, std::int64_t query_heads, std::int64_t kv_heads) {
    const StepTables step{sequences, tokens, at<const std::int32_t>(query_starts), at<const std::int32_t>(context_lens),
                          at<const std::int32_t>(block_tables), table_stride, table_blocks,
                          at<const std::int64_t>(slots), window, causal, omp_get_max_threads(), kv_heads,
                          query_heads / kv_heads};
    nb::gil_scoped_release unlocked;
    new (self) AttentionMetadata(step);
}

void run_attention(Backend& self, const AttentionMetadata& metadata, Address qkv, std::int64_t qkv_stride,
                   std::int64_t query_heads, std::int64_t kv_heads, std::int64_t dim, int kv_type, Address cos,
                   Address sin, std::int64_t half_rotated, Address norm, float eps, Address keys, Address values,
                   float scale, float softcap, Address out, std::int64_t out_stride, Address sinks) {
    const AttentionCall call{{query_heads, kv_heads, dim, static_cast<KvType>(kv_type)},
                             &metadata, at<const float>(qkv), qkv_stride, at<const float>(cos), at<const float>(sin),
                             half_rotated, at<const float>(norm), eps, at<std::byte>(keys), at<std::byte>(values),
                             scale, softcap, at<float>(out), out_stride, &self.workspace, at<const float>(sinks)};
    const Turn turn(self);
    KVARN_CALL(self.isa, attention, call);
}

void run_latent_attention(Backend& self, const AttentionMetadata& metadata, std::int64_t heads, std::int64_t size,
                          std::int64_t value_size, Address queries, Address cache, bool rounded, float scale,
                          Address out) {
    if (size > kMaxLatent) throw std::invalid_argument("a latent row has too many numbers");
    const LatentCall call{&metadata, heads, size, value_size, at<const float>(queries), at<const std::byte>(cache),
                          rounded, scale, at<float>(out)};
    const Turn turn(self);
    KVARN_CALL(self.isa, latent_attention, call);
}

}  // namespace

void bind_attention(nb::module_& m, BackendClass& backend) {
    nb::class_<AttentionMetadata>(m, "AttentionMetadata", "Who reads which keys in one step. Its arrays must outlive it.")
        .def("__init__", &make_metadata, "query_starts"_a, "context_lens"_a, "block_tables"_a, "table_stride"_a,
             "table_blocks"_a, "slots"_a, "sequences"_a, "tokens"_a, "window"_a, "causal"_a, "query_heads"_a, "kv_heads"_a,
             "Raises ValueError where the arrays do not fit together.")
        .def_prop_ro("num_items", [](const AttentionMetadata& self) { return self.items.size(); })
        .def_prop_ro("num_blocks", [](const AttentionMetadata& self) { return self.num_blocks; },
                     "Blocks that the caches must have.");
    backend.def("attention", &run_attention, "metadata"_a, "qkv"_a, "qkv_stride"_a, "query_heads"_a, "kv_heads"_a, "dim"_a,
                "kv_type"_a, "cos"_a, "sin"_a, "half_rotated"_a, "norm"_a, "eps"_a, "keys"_a, "values"_a, "scale"_a,
                "softcap"_a, "out"_a, "out_stride"_a, "sinks"_a = 0);
    backend.def("latent_attention", &run_latent_attention, "metadata"_a, "heads"_a, "size"_a, "value_size"_a, "queries"_a,
                "cache"_a, "rounded"_a, "scale"_a, "out"_a);
}

}  // namespace kvarn
