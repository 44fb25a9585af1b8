// Sixteen numbers at a time: the one vocabulary in which the kernels are written.
//
// F16 is sixteen floats: one AVX-512 register, two AVX2 registers, or an array. All have the same functions, and each
// gives the same bits on every instruction set (multiply-add excepted: `generic` rounds twice where others round once).
#pragma once

#if defined(KVARN_ISA_avx2)
#include "simd/avx2.h"
#elif defined(KVARN_ISA_generic)
#include "simd/generic.h"
#else
#error "no simd header for this instruction set"
#endif

#include "simd/math.h"
