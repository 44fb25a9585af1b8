// Inputs brought to signed bytes that share a scale.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "simd/simd.h"

namespace kvarn::KVARN_ISA {

// Quantises x [count], a multiple of 16, to q and returns the scale. With peak = the largest magnitude in x: q = x *
// (127 / peak) rounded to the nearest integer, ties to even, at most 127 in magnitude; scale = peak / 127. Both are 0
// where peak is 0, or so small that 127 / peak is no finite number. Where an x is infinite or NaN the scale is NaN, and
// with it every output.
inline float quantise(const float* x, std::int64_t count, std::int8_t* q) {
    F16 peaks = zero(), spoiled = zero();
    for (std::int64_t i = 0; i < count; i += 16) {
        const F16 value = load(x + i);
        peaks = max(peaks, max(value, sub(zero(), value)));
        spoiled = fma(value, zero(), spoiled);   // NaN from the first infinity or NaN on, else 0
    }
    const float peak = reduce_max(peaks);
    const float inverse = 127.0f / peak;
    const bool usable = inverse <= std::numeric_limits<float>::max();
    const F16 factor = splat(usable ? inverse : 0.0f), most = splat(127.0f), least = splat(-127.0f);
    for (std::int64_t i = 0; i < count; i += 16)
        store_int8(q + i, max(min(round(mul(load(x + i), factor)), most), least));
    return (usable ? peak / 127.0f : 0.0f) + reduce_add(spoiled);
}

// Quantises x [count], a multiple of 64, block by block of `block` inputs; the last one may be shorter.
inline void quantise_blocks(const float* x, std::int64_t count, std::int64_t block, std::int8_t* q, float* scales) {
    for (std::int64_t first = 0; first < count; first += block)
        scales[first / block] = quantise(x + first, std::min(block, count - first), q + first);
}

}  // namespace kvarn::KVARN_ISA
