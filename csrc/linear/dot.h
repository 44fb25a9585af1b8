// Exact dot products of quantised rows with one panel of packed integer weights: what each instruction set provides.
//
// int8, all in 32-bit integers:
//
//   using Q8 = ...                     one quantised input, as dots8 takes it
//   void arrange8(q, count, out)       brings `count` quantised inputs (a multiple of 64) into that form
//   void dots8(Rows8, Panel8, dots)    dots[r][n] = sum_k q[r][k] * w[n][k]
//
// int4, whose blocks of inputs, of 32 or of 128, each have a scale:
//
//   int32_t sum32(q)                   sum of 32 quantised inputs, in the form in which dots4 takes it
//   void dots4(Rows4, Panel4, sums)    sums[r][n] = sum over blocks b, ascending, of
//                                      float(sum_k q[r][k] * (v[n][k] - zero[n][b]) * sub_scale[n][k / 32]) *
//                                      (scale[r][b] * scale[n][b]), each block added by one fused multiply-add
//
// Integer sums are exact in any order, and so each instruction set multiplies and adds in whatever order suits it.
#pragma once

#include <cstdint>

#include "linear/linear.h"
#include "simd/features.h"

namespace kvarn {

template <class Q>
struct Rows8 {
    const Q* values;        // [count][in], `stride` from row to row
    std::int64_t stride, count;
};

struct Panel8 {
    const std::int8_t* values;   // [in / 4][16][4]
    const std::int32_t* sums;    // [16], each output's weights added up
    std::int64_t in;
};

struct Rows4 {
    const std::int8_t* values;   // [count][in], `stride` from row to row
    const float* scales;         // [count][blocks]
    const std::int32_t* sums;    // [count][in / 32], from sum32
    std::int64_t stride, count;
};

struct Panel4 {
    const std::uint8_t* values;   // [in / 8][16][4]
    const std::uint16_t* scales;  // [groups][16], half precision
    const std::uint8_t* zeros;    // [groups][16], or null: 8 everywhere
    const std::int8_t* sub_scales;    // [in / 32][16], or null: 1 everywhere
    std::int64_t in, group;       // inputs, and how many of them share a scale: a multiple of `block`
    std::int64_t block;           // inputs of a row that share a scale: 32 or 128

    std::int64_t blocks() const { return (in + block - 1) / block; }    // the last one may be shorter
};

}  // namespace kvarn

#if KVARN_WIDE
#include "linear/dot_vnni.h"
#elif KVARN_HAS_YMM
#include "linear/dot_avx2.h"
#else
#include "linear/dot_generic.h"
#endif
