#include "bindings/backend.h"
#include "bindings/topics.h"
#include "delta/delta.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace kvarn {

#define KVARN_DECLARE(name) \
    namespace name {                    \
    void delta_rule(const DeltaCall&);  \
    }
KVARN_FOR_EACH_ISA(KVARN_DECLARE)
#undef KVARN_DECLARE

namespace {

using Address = std::uintptr_t;

void run_delta_rule(Backend& self, std::int64_t key_heads, std::int64_t value_heads, std::int64_t key_dim,
                    std::int64_t value_dim, std::int64_t window, std::int64_t sequences, std::int64_t tokens,
                    Address query_starts, Address places, Address saves, std::int64_t num_saves, Address projected,
                    Address rates, Address convolution, Address decay, Address decay_bias, Address norm, float eps,
                    Address matrices, Address inputs, Address out) {
    const Turn turn(self);
    const DeltaCall call{{key_heads, value_heads, key_dim, value_dim, window},
                         sequences, tokens, at<const std::int32_t>(query_starts), at<const std::int64_t>(places),
                         at<const DeltaSave>(saves), num_saves, at<const float>(projected), at<const float>(rates),
                         at<const float>(convolution), at<const float>(decay), at<const float>(decay_bias),
                         at<const float>(norm), eps, at<float>(matrices), at<float>(inputs), at<float>(out),
                         &self.workspace};
    KVARN_CALL(self.isa, delta_rule, call);
}

}  // namespace

void bind_delta(BackendClass& backend) {
    backend.def("delta_rule", &run_delta_rule, "key_heads"_a, "value_heads"_a, "key_dim"_a, "value_dim"_a, "window"_a,
                "sequences"_a, "tokens"_a, "query_starts"_a, "places"_a, "saves"_a, "num_saves"_a, "projected"_a,
                "rates"_a, "convolution"_a, "decay"_a, "decay_bias"_a, "norm"_a, "eps"_a, "matrices"_a, "inputs"_a,
                "out"_a);
}

}  // namespace kvarn
