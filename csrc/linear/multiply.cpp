#include "linear/multiply.h"

namespace kvarn {

#define KVARN_DECLARE(name) \
    namespace name { \
        void linear_float(const LinearCall&); \
        void linear_integer(const LinearCall&); \
        const float* const* adapter_deltas(const AdapterBatch&, std::int64_t, const LinearCall&, Workspace&); \
    }
KVARN_FOR_EACH_ISA(KVARN_DECLARE)
#undef KVARN_DECLARE

namespace {

const float* const* deltas_of(Isa isa, const AdapterBatch& batch, std::int64_t layer, const LinearCall& call,
                              Workspace& memory) {
    KVARN_CALL(isa, adapter_deltas, batch, layer, call, memory);
    return nullptr;
}

}  // namespace

bool is_integer(const PackedWeight& weight) { return weight.format == Format::int8 || weight.format == Format::int4; }

void multiply(Isa isa, LinearCall call, const AdapterBatch* adapters, std::int64_t layer, Workspace& deltas) {
    PrefetchList next;
    if (adapters) {
        call.deltas = deltas_of(isa, *adapters, layer, call, deltas);
        next = lines_of_layer(*adapters, layer + 1);
        call.next = &next;
    }
    if (is_integer(call.weight)) {
        KVARN_CALL(isa, linear_integer, call);
    }
    KVARN_CALL(isa, linear_float, call);
}

}  // namespace kvarn
