#include <vector>

#include <nanobind/stl/vector.h>

#include "bindings/backend.h"
#include "bindings/topics.h"
#include "sampling/mask.h"
#include "sampling/sampling.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace kvarn {

#define KVARN_DECLARE(name)                         \
    namespace name {                                \
    void most_likely(const MostLikelyCall&);        \
    void draw_tokens(const DrawCall&);              \
    void token_weights(const DrawCall&, float* out); \
    }
KVARN_FOR_EACH_ISA(KVARN_DECLARE)
#undef KVARN_DECLARE

namespace {

void most_likely_token(Backend& self, std::uintptr_t logits, std::int64_t rows, std::int64_t vocab, std::int64_t stride,
                       std::uintptr_t tokens, std::uintptr_t values) {
    const MostLikelyCall call{at<const float>(logits), rows,          vocab, stride, at<std::int64_t>(tokens),
                              at<float>(values),       &self.workspace};
    const Turn turn(self);
    KVARN_CALL(self.isa, most_likely, call);
}

void draw(Backend& self, std::uintptr_t logits, std::int64_t vocab, std::int64_t stride, int bits, std::uintptr_t rows,
          std::int64_t count, std::uintptr_t row_max, std::uintptr_t temperature, std::uintptr_t top_k,
          std::uintptr_t top_p, std::uintptr_t min_p, std::uintptr_t uniforms, std::uintptr_t tokens) {
    const DrawCall call{.logits = at<const float>(logits),
                        .vocab = vocab,
                        .stride = stride,
                        .bits = bits,
                        .rows = at<const std::int64_t>(rows),
                        .count = count,
                        .row_max = at<const float>(row_max),
                        .temperature = at<const float>(temperature),
                        .top_k = at<const std::int64_t>(top_k),
                        .top_p = at<const double>(top_p),
                        .min_p = at<const float>(min_p),
                        .uniforms = at<const double>(uniforms),
                        .tokens = at<std::int64_t>(tokens),
                        .workspace = &self.workspace};
    const Turn turn(self);
    KVARN_CALL(self.isa, draw_tokens, call);
}

void mask(Backend& self, std::uintptr_t logits, std::int64_t vocab, std::int64_t stride,
          const std::vector<std::int64_t>& rows, const std::vector<std::uintptr_t>& masks) {
    std::vector<const std::uint32_t*> words;
    for (const std::uintptr_t each : masks) words.push_back(at<const std::uint32_t>(each));
    const Turn turn(self);
    mask_logits({at<float>(logits), vocab, stride, rows.data(), words.data(), static_cast<std::int64_t>(rows.size())});
}

// The weights of one row as a draw computes them: what tests compare an exact reference with.
void weights_of(Backend& self, std::uintptr_t logits, std::int64_t vocab, int bits, float row_max, float temperature,
                float min_p, std::uintptr_t out) {
    const std::int64_t row = 0;
    DrawCall call{};
    call.logits = at<const float>(logits);
    call.vocab = vocab;
    call.bits = bits;
    call.rows = &row;
    call.count = 1;
    call.row_max = &row_max;
    call.temperature = &temperature;
    call.min_p = &min_p;
    const Turn turn(self);
    KVARN_CALL(self.isa, token_weights, call, at<float>(out));
}

}  // namespace

void bind_sampling(BackendClass& backend) {
    backend.def("most_likely", &most_likely_token, "logits"_a, "rows"_a, "vocab"_a, "stride"_a, "tokens"_a, "values"_a);
    backend.def("draw_tokens", &draw, "logits"_a, "vocab"_a, "stride"_a, "bits"_a, "rows"_a, "count"_a, "row_max"_a,
                "temperature"_a, "top_k"_a, "top_p"_a, "min_p"_a, "uniforms"_a, "tokens"_a);
    backend.def("mask_logits", &mask, "logits"_a, "vocab"_a, "stride"_a, "rows"_a, "masks"_a);
    backend.def("token_weights", &weights_of, "logits"_a, "vocab"_a, "bits"_a, "row_max"_a, "temperature"_a, "min_p"_a,
                "out"_a);
}

}  // namespace kvarn
