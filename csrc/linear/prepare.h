// The input of a linear layer made ready for its kernel: normed, and padded with zeros to whole lines of weights.
#pragma once

#include <algorithm>
#include <cstdint>

#include "elementwise/norm_row.h"
#include "linear/linear.h"
#include "simd/simd.h"

namespace kvarn::KVARN_ISA {

// Row `row` of call.x, normed where the call has a norm, to out [in_padded].
inline void prepare_row(const LinearCall& call, std::int64_t row, float* out) {
    const std::int64_t in = call.weight.in, padded = call.weight.in_padded();
    const float* x = call.x + row * call.x_stride;
    const F16 factor = splat(call.norm ? rms_factor(x, in, call.eps) : 1.0f);
    for (std::int64_t i = 0; i < padded; i += 16) {
        const int lanes = static_cast<int>(std::clamp<std::int64_t>(in - i, 0, 16));
        F16 value = lanes == 16 ? load(x + i) : load_first(x + i, lanes);
        if (call.norm) {
            const F16 weight = lanes == 16 ? load(call.norm + i) : load_first(call.norm + i, lanes);
            value = mul(mul(value, factor), weight);
        }
        store(out + i, value);
    }
}

}  // namespace kvarn::KVARN_ISA
