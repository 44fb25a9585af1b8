#include "elementwise/norm.h"

#include "core/parallel.h"
#include "elementwise/norm_row.h"
#include "simd/simd.h"

namespace kvarn::KVARN_ISA {

namespace {

void norm_row(const RmsNormCall& call, const float* x, float* out) {
    const F16 factor = splat(rms_factor(x, call.size, call.eps));
    for (std::int64_t i = 0; i < call.size; i += 16) {
        const int n = static_cast<int>(std::min<std::int64_t>(16, call.size - i));
        F16 v = mul(mul(load_first(x + i, n), factor), load_first(call.weight + i, n));
        if (call.accumulate) v = add(v, load_first(out + i, n));
        store_first(out + i, v, n);
    }
}

constexpr std::int64_t kPieceNumbers = 32 * 1024;  // numbers normed as one piece of work

}  // namespace

void rms_norm(const RmsNormCall& call) {
    const std::int64_t rows_each = std::max<std::int64_t>(1, kPieceNumbers / std::max<std::int64_t>(1, call.size));
    parallel_pieces((call.rows + rows_each - 1) / rows_each, [&](std::int64_t piece) {
        const std::int64_t last = std::min(call.rows, (piece + 1) * rows_each);
        for (std::int64_t r = piece * rows_each; r < last; ++r)
            norm_row(call, call.x + r * call.x_stride, call.out + r * call.out_stride);
    });
}

}  // namespace kvarn::KVARN_ISA
