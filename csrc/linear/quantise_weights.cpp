#include "linear/quantise_weights.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "core/half.h"
#include "core/parallel.h"
#include "linear/linear.h"
#include "simd/simd.h"

namespace kvarn::KVARN_ISA {

namespace {

constexpr std::int64_t kPieceInputs = 64 * 1024;
constexpr float kPeaks[] = {-8.0f, -7.3f, -8.7f};    // what the largest weight of 32 is divided to
constexpr float kLargestMultiplier = 15.0f;

// 1 / x; 0 where that is infinite.
float inverse(float x) {
    const float result = 1.0f / x;
    return std::isinf(result) ? 0.0f : result;
}

F16 clamped(F16 x, float low, float high) { return max(min(x, splat(high)), splat(low)); }

// Calls body(row, x) for every row, x being its numbers [in rounded up to a multiple of 128], zeros at the end.
template <class Body>
void each_row(const PlainWeight& weight, const Body& body) {
    const std::int64_t padded = (weight.in + kScaleInputs - 1) / kScaleInputs * kScaleInputs;
    const std::int64_t rows_each = std::max<std::int64_t>(1, kPieceInputs / padded);
    parallel_pieces((weight.out + rows_each - 1) / rows_each, [&](std::int64_t piece) {
        std::vector<float> x(static_cast<std::size_t>(padded));
        for (std::int64_t row = piece * rows_each; row < std::min(weight.out, (piece + 1) * rows_each); ++row) {
            if (weight.is_bf16) {
                const auto* from = static_cast<const std::uint16_t*>(weight.values) + row * weight.in;
                for (std::int64_t k = 0; k < weight.in; ++k) x[k] = std::bit_cast<float>(std::uint32_t{from[k]} << 16);
            } else {
                std::memcpy(x.data(), static_cast<const float*>(weight.values) + row * weight.in,
                            static_cast<std::size_t>(weight.in) * sizeof(float));
            }
            body(row, x.data());
        }
    });
}

// The number of largest magnitude, with its sign.
float largest(const float* x, std::int64_t count) {
    F16 high = load(x), low = sub(zero(), high);
    for (std::int64_t i = 16; i < count; i += 16) {
        high = max(high, load(x + i));
        low = max(low, sub(zero(), load(x + i)));
    }
    const float most = reduce_max(high), least = reduce_max(low);
    return least > most ? -least : most;
}

// The scale of 32 numbers that loses least.
float best_scale(const float* x) {
    const float inverse_peak = inverse(largest(x, kMultiplied));
    const F16 first = load(x), second = load(x + 16);
    float best = 0.0f, best_gain = 0.0f;
    for (const float peak : kPeaks) {
        const F16 factor = splat(peak * inverse_peak);
        const F16 a = clamped(round(mul(first, factor)), -8.0f, 7.0f);
        const F16 b = clamped(round(mul(second, factor)), -8.0f, 7.0f);
        const float product = reduce_add(add(mul(first, a), mul(second, b)));
        const float scale = product * inverse(reduce_add(add(mul(a, a), mul(b, b))));
        if (product * scale > best_gain) {
            best_gain = product * scale;
            best = scale;
        }
    }
    return best;
}

}  // namespace

void quantise_int8_weight(const PlainWeight& weight, const Int8Weight& out) {
    each_row(weight, [&](std::int64_t row, const float* x) {
        const std::int64_t padded = (weight.in + 15) / 16 * 16;
        const float peak = std::fabs(largest(x, padded));
        const F16 factor = splat(127.0f * inverse(peak));
        out.scales[row] = peak / 127.0f;
        std::int8_t* q = out.values + row * weight.in;
        for (std::int64_t k = 0; k < weight.in; k += 16) {
            std::int8_t bytes[16];
            store_int8(bytes, clamped(round(mul(load(x + k), factor)), -127.0f, 127.0f));
            std::memcpy(q + k, bytes, static_cast<std::size_t>(std::min<std::int64_t>(16, weight.in - k)));
        }
    });
}

void quantise_int4_weight(const PlainWeight& weight, const Int4Weight& out) {
    constexpr std::int64_t kParts = kScaleInputs / kMultiplied;
    const std::int64_t groups = (weight.in + kScaleInputs - 1) / kScaleInputs;
    const std::int64_t parts = (weight.in + kMultiplied - 1) / kMultiplied;
    each_row(weight, [&](std::int64_t row, const float* x) {
        for (std::int64_t group = 0; group < groups; ++group) {
            float wanted[kParts], peak = 0.0f;
            for (std::int64_t i = 0; i < kParts; ++i) {
                wanted[i] = best_scale(x + group * kScaleInputs + i * kMultiplied);
                peak = std::max(peak, std::fabs(wanted[i]));
            }
            const std::uint16_t half = to_half_bits(peak / kLargestMultiplier);
            const float scale = from_half_bits(half), units = inverse(scale);
            out.scales[row * groups + group] = half;
            for (std::int64_t i = 0; i < std::min(kParts, parts - group * kParts); ++i) {
                const std::int64_t part = group * kParts + i, first = part * kMultiplied;
                const float rounded = std::nearbyint(wanted[i] * units);
                const float clipped = std::clamp(rounded, -kLargestMultiplier, kLargestMultiplier);
                const float multiplier = clipped == 0.0f ? 1.0f : clipped;
                out.multipliers[row * parts + part] = static_cast<std::int8_t>(multiplier);
                const F16 factor = splat(inverse(multiplier * scale));
                for (std::int64_t k = first; k < std::min(first + kMultiplied, weight.in); k += 16) {
                    std::int8_t bytes[16];
                    store_int8(bytes, add(clamped(round(mul(load(x + k), factor)), -8.0f, 7.0f), splat(8.0f)));
                    std::memcpy(out.values + row * weight.in + k, bytes,
                                static_cast<std::size_t>(std::min<std::int64_t>(16, weight.in - k)));
                }
            }
        }
    });
}

}  // namespace kvarn::KVARN_ISA
