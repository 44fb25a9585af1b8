// Sixteen numbers at a time: the one vocabulary in which the kernels are written.
//
// F16 is sixteen floats: one AVX-512 register, two AVX2 registers, or an array. All have the same functions, and each
// gives the same bits on every instruction set (multiply-add excepted: on x86-64 `generic` rounds twice where others round once).
#pragma once

#include "simd/features.h"

#if KVARN_HAS_ZMM
#include "simd/avx512.h"
#elif KVARN_HAS_YMM
#include "simd/avx2.h"
#else
#include "simd/generic.h"
#endif

#include "simd/math.h"

namespace kvarn::KVARN_ISA {

// Sixteen numbers rounded to bfloat16, for products of bfloat16 alone: those take a number below 2^-126 for zero, as the
// processor's own rounding does.
inline void store_bf16_factors(void* p, F16 a) {
#if defined(__AVX512BF16__)
    _mm256_storeu_si256(static_cast<__m256i*>(p), reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(a.v)));
#else
    store_bf16(p, a);
#endif
}

}  // namespace kvarn::KVARN_ISA
