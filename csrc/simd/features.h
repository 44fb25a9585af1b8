// What the instruction set being compiled has. Kernels ask for a property, never for a set by its name.
//
//   KVARN_HAS_YMM      AVX2 intrinsics compile
//   KVARN_HAS_ZMM      AVX-512 F, BW, DQ, VL and VNNI intrinsics compile
//   KVARN_WIDE         loops are blocked for 32 vector registers, one for an F16; else for 16, two for an F16
//   KVARN_HAS_BF16DOT  simd/bf16_dot.h: products of bfloat16 pairs
//   KVARN_HAS_TILES    simd/tiles.h: AMX tiles
//
// An emulated set takes every decision of the set it is named after, on AVX2 registers: F16 gives the same bits
// there, and what is left (tiles, bfloat16 pairs) is done in software, bit for bit as the processor's manual says.
#pragma once

#if defined(KVARN_ISA_amx) || defined(KVARN_ISA_emulated_amx)
#define KVARN_HAS_TILES 1
#else
#define KVARN_HAS_TILES 0
#endif

#if KVARN_HAS_TILES || defined(KVARN_ISA_avx512_bf16) || defined(KVARN_ISA_emulated_avx512_bf16)
#define KVARN_HAS_BF16DOT 1
#else
#define KVARN_HAS_BF16DOT 0
#endif

#if KVARN_HAS_BF16DOT || defined(KVARN_ISA_avx512) || defined(KVARN_ISA_emulated_avx512)
#define KVARN_WIDE 1
#else
#define KVARN_WIDE 0
#endif

#if defined(KVARN_ISA_amx) || defined(KVARN_ISA_avx512_bf16) || defined(KVARN_ISA_avx512)
#define KVARN_HAS_ZMM 1
#else
#define KVARN_HAS_ZMM 0
#endif

#if KVARN_WIDE || defined(KVARN_ISA_avx2)
#define KVARN_HAS_YMM 1
#else
#define KVARN_HAS_YMM 0
#endif
