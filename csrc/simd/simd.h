// Sixteen numbers at a time: the one vocabulary in which the kernels are written.
//
// F16 is sixteen floats: one AVX-512 register, two AVX2 registers, or an array. All have the same functions, and each
// gives the same bits on every instruction set (multiply-add excepted: `generic` rounds twice where others round once).
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
