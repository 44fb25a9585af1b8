// Norms over the last dimension.
#pragma once

#include <cstdint>

namespace kvarn {

// out[r] = x[r] / sqrt(mean(x[r]^2) + eps) * weight, or that added to what stands in out.
struct RmsNormCall {
    const float* x;          // [rows, size], x_stride floats from row to row
    std::int64_t rows, size, x_stride;
    const float* weight;     // [size]
    float eps;
    float* out;              // [rows, size], out_stride floats from row to row; may be x
    std::int64_t out_stride;
    bool accumulate;
};

}  // namespace kvarn
