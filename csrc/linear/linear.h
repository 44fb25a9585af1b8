// Linear layers: out = x * W^T (+ bias), on weights packed once.
//
// One packed layout per format, the same for every instruction set, read strictly in order. Outputs come in panels of
// 16, inputs in groups that fill 32 bits, so that one 64-byte line holds the next input group of all 16 outputs: two
// AVX2 registers, one AVX-512 register or one row of an AMX tile.
//
//   f32   [panel][in      ][16]      float
//   bf16  [panel][in / 2  ][16][2]   bfloat16
//   int8  [panel][in / 4  ][16][4]   signed bytes, one float scale per output
//   int4  [panel][in / 8  ][16][4]   bytes: low nibble = inputs 0-3 of the eight, high nibble = inputs 4-7;
//                                    a half-precision scale and (where has_zeros) a zero point per output and group;
//                                    where has_sub_scales, a signed byte per output and 32 inputs, by which these
//                                    weights (less 8) are multiplied
//
// `in` is padded with zeros to a multiple of 64, the number of outputs to a multiple of 16. A gated weight (gate above
// up, each I outputs) is packed with its panels in turn: gate, up, gate, up, ...
//
// Order of sums: each output is one chain over inputs in ascending order, whatever the number of rows and threads, so
// a row's result never depends on its neighbours (for int8 and int4 the integer part is exact in any order).
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/activation.h"
#include "core/workspace.h"
#include "linear/prefetch.h"

namespace kvarn {

enum class Format : int { f32 = 0, bf16 = 1, int8 = 2, int4 = 3 };

constexpr std::int64_t kPanel = 16;    // outputs of a panel
constexpr std::int64_t kInPad = 64;    // inputs are padded to a multiple of this
constexpr std::int64_t kQuad = 4;      // integer inputs of one output that lie together
constexpr std::int64_t kSubScaled = 32;      // int4 inputs that share a sub-scale
constexpr std::int64_t kScaleInputs = 128;    // quantised inputs that share a scale, beside int4 groups of as many

// A packed weight. `blob` begins on a 64-byte boundary and holds the sections at the offsets that `sections` gives.
struct PackedWeight {
    Format format;
    std::int64_t out;      // outputs; 2 I where gated
    std::int64_t in;       // inputs
    std::int64_t group;    // inputs that share a scale (int4), else 0
    bool has_zeros;        // int4 with zero points; else each zero point is 8
    bool has_sub_scales;  // int4 without zero points whose groups are multiples of kScaleInputs
    bool gated;
    const std::byte* blob;

    std::int64_t in_padded() const { return (in + kInPad - 1) / kInPad * kInPad; }
    // Panels of the whole weight; a gated one pads gate and up separately.
    std::int64_t panels() const {
        return gated ? 2 * ((out / 2 + kPanel - 1) / kPanel) : (out + kPanel - 1) / kPanel;
    }
    std::int64_t groups() const { return group ? (in_padded() + group - 1) / group : 0; }
    // int4: inputs of a row that share a scale.
    std::int64_t scale_inputs() const { return group % kScaleInputs ? kSubScaled : kScaleInputs; }
};

// Offsets of a packed weight's sections in its blob, and its whole size, in bytes.
struct Sections {
    std::size_t values;    // panels, in order; `panel_bytes` each
    std::size_t panel_bytes;
    std::size_t scales;    // int8: float [panels * 16]; int4: half [panels][groups][16]
    std::size_t sums;      // int8: int32 [panels * 16], sum of each output's weights
    std::size_t zeros;     // int4 with zero points: uint8 [panels][groups][16]
    std::size_t sub_scales;    // int4 that has them: int8 [panels][in / 32][16]
    std::size_t size;
};
Sections sections(const PackedWeight& weight);

// out[r][n] = (residual ? out[r][n] : 0) + sum_k norm(x[r])[k] * W[n][k] + bias[n]
// or, gated: out[r][i] = (residual ? out[r][i] : 0) + activation(gate[i]) * up[i], bias within gate and up.
struct LinearCall {
    PackedWeight weight;
    const float* x;              // [rows, in], x_stride floats from row to row
    std::int64_t rows;
    std::int64_t x_stride;
    const float* norm;           // [in] weight of a root-mean-square norm applied to x first, or null
    float eps;                   // of that norm
    Activation activation;       // of the gate; none where not gated
    const float* bias;           // [out] or null; where gated, gate above up, each added before anything else
    float* out;                  // [rows, out or I], out_stride floats from row to row
    std::int64_t out_stride;
    bool accumulate;             // add to what stands in out
    const float* const* deltas;  // [rows] or null: [out] numbers added to a row's sums before anything else, null for none
    const PrefetchList* next;    // what the call after this one reads beside its weight, or null
    Workspace* workspace;
};

}  // namespace kvarn
