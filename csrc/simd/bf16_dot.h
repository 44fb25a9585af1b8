// Products of bfloat16 pairs, added to sixteen sums:
//
//   add_dots(sums, weights, pair)   sums[n] += weights[n][1] * pair[1], then += weights[n][0] * pair[0]
//
// each a fused multiply-add, for which numbers below 2^-126 count as zero, given or found. Around such products, and
// around them alone, a Bf16DotScope must live.
#pragma once

#include <bit>
#include <cstdint>

#include "simd/simd.h"

#if !KVARN_HAS_ZMM
#include "simd/flushed.h"
#endif

namespace kvarn::KVARN_ISA {

#if KVARN_HAS_ZMM
struct Bf16DotScope {};

inline F16 add_dots(F16 sums, const void* weights, std::uint32_t pair) {
    const __m512i w = _mm512_loadu_si512(weights), x = _mm512_set1_epi32(static_cast<int>(pair));
    return {_mm512_dpbf16_ps(sums.v, reinterpret_cast<__m512bh>(w), reinterpret_cast<__m512bh>(x))};
}
#else
// Done in software as Intel's manual defines VDPBF16PS.
using Bf16DotScope = Flushed;

inline F16 add_dots(F16 sums, const void* weights, std::uint32_t pair) {
    sums = fma(bf16_odd(weights), splat(std::bit_cast<float>(pair & 0xffff0000u)), sums);
    return fma(bf16_even(weights), splat(std::bit_cast<float>(pair << 16)), sums);
}
#endif

}  // namespace kvarn::KVARN_ISA
