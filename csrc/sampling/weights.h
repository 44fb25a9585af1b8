// Integer weights of one row, a chunk of tokens at a time; computed anew wherever they are looked at.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "sampling/sampling.h"
#include "simd/simd.h"

namespace kvarn::KVARN_ISA {

constexpr std::int64_t kChunk = 128;  // tokens

// What turns the logits of a row into weights.
class RowWeights {
  public:
    RowWeights(const DrawCall& call, std::int64_t index)
        : logits_(call.logits + call.rows[index] * call.stride),
          vocab_(call.vocab),
          row_max_(call.row_max[index]),
          temperature_(call.temperature[index]),
          scale_(std::ldexp(1.0f, call.bits)),
          smallest_(call.min_p[index] * scale_) {}

    std::int64_t chunks() const { return (vocab_ + kChunk - 1) / kChunk; }
    // The weight of the most likely token.
    float heaviest() const { return scale_; }

    // Calls visit(weights, token of the first lane) for the chunk's tokens, sixteen at a time; lanes past the
    // vocabulary weigh 0.
    template <class Visit>
    void visit(std::int64_t chunk, Visit&& visit) const {
        const std::int64_t last = std::min(vocab_, (chunk + 1) * kChunk);
        std::int64_t token = chunk * kChunk;
        for (; token + 16 <= last; token += 16) visit(of(load(logits_ + token)), token);
        if (token == last) return;
        float padded[16];
        std::fill(std::copy(logits_ + token, logits_ + last, padded), padded + 16,
                  -std::numeric_limits<float>::infinity());
        visit(of(load(padded)), token);
    }

  private:
    F16 of(F16 logits) const {
        const F16 share = exp(div(sub(logits, splat(row_max_)), splat(temperature_)));
        const F16 weights = round(mul(share, splat(scale_)));
        return where_less(weights, splat(smallest_), zero(), weights);
    }

    const float* logits_;
    std::int64_t vocab_;
    float row_max_, temperature_, scale_, smallest_;
};

}  // namespace kvarn::KVARN_ISA
