// What is done to the sums of a linear layer before they are its outputs: shared by the kernels of all formats.
#pragma once

#include <algorithm>
#include <cstdint>

#include "elementwise/activation_lanes.h"
#include "linear/linear.h"
#include "simd/simd.h"

namespace kvarn::KVARN_ISA {

// Writes outputs of one row, given the sums of neighbouring panels, [panels][16]. Where the weight is gated,
// `first_panel` and `panels` are even: gate and up stand beside each other.
inline void finish_row(const LinearCall& call, std::int64_t row, std::int64_t first_panel, std::int64_t panels,
                       const float* sums) {
    const bool gated = call.weight.gated;
    const std::int64_t outputs = gated ? call.weight.out / 2 : call.weight.out;
    float* out = call.out + row * call.out_stride;
    const float* delta = call.deltas ? call.deltas[row] : nullptr;
    for (std::int64_t p = 0; p < panels; p += gated ? 2 : 1) {
        const std::int64_t first = (first_panel + p) / (gated ? 2 : 1) * kPanel;
        const int lanes = static_cast<int>(std::min(kPanel, outputs - first));
        F16 value = load(sums + p * kPanel);
        if (delta) value = add(value, load_first(delta + first, lanes));
        if (call.bias) value = add(value, load_first(call.bias + first, lanes));
        if (gated) {
            F16 up = load(sums + (p + 1) * kPanel);
            if (delta) up = add(up, load_first(delta + outputs + first, lanes));
            if (call.bias) up = add(up, load_first(call.bias + outputs + first, lanes));
            value = mul(activate(value, call.activation), up);
        }
        if (call.accumulate) value = add(load_first(out + first, lanes), value);
        store_first(out + first, value, lanes);
    }
}

}  // namespace kvarn::KVARN_ISA
