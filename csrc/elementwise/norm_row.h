// The root-mean-square norm of one row: shared by the norm itself and by the kernels that apply it to their input.
#pragma once

#include <cmath>
#include <cstdint>

#include "simd/simd.h"

namespace kvarn::KVARN_ISA {

// Factor that scales a row to mean square 1. Squares are summed in sixteen chains, one a lane, and joined in a fixed tree.
inline float rms_factor(const float* x, std::int64_t size, float eps) {
    F16 sum = zero();
    std::int64_t i = 0;
    for (; i + 16 <= size; i += 16) {
        const F16 v = load(x + i);
        sum = fma(v, v, sum);
    }
    if (i < size) {
        const F16 v = load_first(x + i, static_cast<int>(size - i));
        sum = fma(v, v, sum);
    }
    return 1.0f / std::sqrt(reduce_add(sum) / static_cast<float>(size) + eps);
}

}  // namespace kvarn::KVARN_ISA
