// Linear layers on int8 and int4 weights, with inputs quantised to int8 as they come.
//
// int8: one scale for each row of inputs, one for each output:
//     out = float(sum_k q[k] w[k]) * (row scale * output scale)
// int4: a scale for each 128 inputs of a row (each 32 where the weights' groups are not multiples of 128), one for each
// group of an output's weights; weights are held in 4 bits, inputs in 8. A sub-scale, where there are some, is a whole
// number for 32 weights: their scale as a multiple of the group's, as in llama.cpp's K-quants. Block by block of inputs,
// in ascending order:
//     out = fma(float(sum_k q[k] (v[k] - zero) sub_scale), block scale * group scale, out)
// Then bias, gate and what stands in out, in floats. Integer sums are exact and every float step is elementwise, in one
// order: a row's outputs are the same bits for any number of rows and threads and on every instruction set.
#include <algorithm>
#include <cstdint>

#include <omp.h>

#include "core/parallel.h"
#include "linear/dot.h"
#include "linear/epilogue.h"
#include "linear/int4_tiles.h"
#include "linear/int8_tiles.h"
#include "linear/linear.h"
#include "linear/prepare.h"
#include "linear/quantise_row.h"

namespace kvarn::KVARN_ISA {

namespace {

constexpr std::int64_t kQuantisePiece = 16 * 1024;  // inputs quantised as one piece of work
constexpr std::int64_t kWeightPiece = 96 * 1024;    // bytes of weights multiplied as one piece of work
constexpr std::int64_t kRowGap = 64;                // between quantised rows: equal places in other cache sets
constexpr std::int64_t kRowPiece = 128;             // rows multiplied at once; their sums stay in the nearest caches

// The quantised rows, and how a panel is multiplied by some of them.
class Int8 {
  public:
    Int8(const LinearCall& call, Carver& memory)
        : weight_(call.weight), at_(sections(call.weight)),
          stride_(weight_.in_padded() + kRowGap),
          values_(memory.take<Q8>(call.rows * stride_)), scales_(memory.take<float>(call.rows)) {}

    // Quantises one row x [in_padded]; `bytes` [in_padded] is scratch memory.
    void put(std::int64_t row, const float* x, std::int8_t* bytes) const {
        const std::int64_t in = weight_.in_padded();
        scales_[row] = quantise(x, in, bytes);
        arrange8(bytes, in, values_ + row * stride_);
    }

    // sums[r][n] for rows first to first + count - 1.
    void multiply(std::int64_t panel, std::int64_t first, std::int64_t count, float* sums) const {
        const std::int64_t in = weight_.in_padded();
        const auto* weights = reinterpret_cast<const std::int8_t*>(weight_.blob + at_.values + panel * at_.panel_bytes);
        const auto* totals = reinterpret_cast<const std::int32_t*>(weight_.blob + at_.sums) + panel * kPanel;
        const F16 scale = load(reinterpret_cast<const float*>(weight_.blob + at_.scales) + panel * kPanel);
        alignas(64) std::int32_t dots[kRowPiece * kPanel];
        dots8({values_ + first * stride_, stride_, count}, {weights, totals, in}, dots);
        for (std::int64_t r = 0; r < count; ++r)
            store(sums + r * kPanel, mul(from_int32(dots + r * kPanel), mul(splat(scales_[first + r]), scale)));
    }

  private:
    PackedWeight weight_;
    Sections at_;
    std::int64_t stride_;
    Q8* values_;
    float* scales_;
};

class Int4 {
  public:
    Int4(const LinearCall& call, Carver& memory)
        : weight_(call.weight), at_(sections(call.weight)), parts_(weight_.in_padded() / kSubScaled),
          block_(weight_.scale_inputs()), blocks_((weight_.in_padded() + block_ - 1) / block_),
          stride_(weight_.in_padded() + kRowGap), values_(memory.take<std::int8_t>(call.rows * stride_)),
          scales_(memory.take<float>(call.rows * blocks_)), sums_(memory.take<std::int32_t>(call.rows * parts_)) {}

    void put(std::int64_t row, const float* x, std::int8_t*) const {
        std::int8_t* q = values_ + row * stride_;
        quantise_blocks(x, weight_.in_padded(), block_, q, scales_ + row * blocks_);
        for (std::int64_t part = 0; part < parts_; ++part) sums_[row * parts_ + part] = sum32(q + part * kSubScaled);
    }

    void multiply(std::int64_t panel, std::int64_t first, std::int64_t count, float* sums) const {
        const std::int64_t in = weight_.in_padded(), of_panel = panel * weight_.groups() * kPanel;
        const auto* weights = reinterpret_cast<const std::uint8_t*>(weight_.blob + at_.values + panel * at_.panel_bytes);
        const auto* scales = reinterpret_cast<const std::uint16_t*>(weight_.blob + at_.scales) + of_panel;
        const auto* zeros = reinterpret_cast<const std::uint8_t*>(weight_.blob + at_.zeros) + of_panel;
        const auto* sub_scales = reinterpret_cast<const std::int8_t*>(weight_.blob + at_.sub_scales);
        dots4({values_ + first * stride_, scales_ + first * blocks_, sums_ + first * parts_, stride_, count},
              {weights, scales, weight_.has_zeros ? zeros : nullptr,
               weight_.has_sub_scales ? sub_scales + panel * parts_ * kPanel : nullptr, in, weight_.group, block_},
              sums);
    }

  private:
    PackedWeight weight_;
    Sections at_;
    std::int64_t parts_, block_, blocks_, stride_;    // parts: of 32 inputs
    std::int8_t* values_;
    float* scales_;
    std::int32_t* sums_;
};

// Multiplies some rows by one panel, or by a gate and its up, and writes their outputs.
template <class Rows>
void outputs(const LinearCall& call, const Rows& rows, std::int64_t panel, std::int64_t first, std::int64_t count) {
    const std::int64_t together = call.weight.gated ? 2 : 1;
    alignas(64) float sums[2][kRowPiece * kPanel];
    for (std::int64_t p = 0; p < together; ++p) rows.multiply(panel + p, first, count, sums[p]);
    for (std::int64_t r = 0; r < count; ++r) {
        alignas(64) float row[2 * kPanel];
        for (std::int64_t p = 0; p < together; ++p) store(row + p * kPanel, load(sums[p] + r * kPanel));
        finish_row(call, first + r, panel, together, row);
    }
}

template <class Rows>
void multiply_all(const LinearCall& call, const Rows& rows) {
    const std::int64_t together = call.weight.gated ? 2 : 1;
    const std::int64_t units = call.weight.panels() / together;
    const auto unit_bytes = static_cast<std::int64_t>(sections(call.weight).panel_bytes) * together;
    const TaperedPieces pieces(units, std::clamp<std::int64_t>(kWeightPiece / unit_bytes, 1, units));
    const std::int64_t row_pieces = (call.rows + kRowPiece - 1) / kRowPiece;
    parallel_pieces(pieces.count() * row_pieces, [&](std::int64_t index) {
        const std::int64_t first = index / pieces.count() * kRowPiece;
        const std::int64_t count = std::min(kRowPiece, call.rows - first);
        const auto [unit, last] = pieces[index % pieces.count()];
        for (std::int64_t u = unit; u < last; ++u) outputs(call, rows, u * together, first, count);
    });
}

// Memory in which each thread prepares one row after another.
struct Scratch {
    float* x;
    std::int8_t* bytes;

    Scratch(const LinearCall& call, Carver& memory)
        : x(memory.take<float>(omp_get_max_threads() * call.weight.in_padded())),
          bytes(memory.take<std::int8_t>(omp_get_max_threads() * call.weight.in_padded())) {}
};

template <class Rows>
void quantise_all(const LinearCall& call, const Rows& rows, const Scratch& scratch) {
    const std::int64_t in = call.weight.in_padded();
    const std::int64_t piece_rows = std::max<std::int64_t>(1, kQuantisePiece / in);
    parallel_pieces((call.rows + piece_rows - 1) / piece_rows, [&](std::int64_t piece) {
        float* x = scratch.x + omp_get_thread_num() * in;
        std::int8_t* bytes = scratch.bytes + omp_get_thread_num() * in;
        for (std::int64_t r = piece * piece_rows; r < std::min(call.rows, (piece + 1) * piece_rows); ++r) {
            prepare_row(call, r, x);
            rows.put(r, x, bytes);
        }
    });
}

template <class Rows>
void run(const LinearCall& call) {
    Carver needed;
    Rows(call, needed);
    Scratch(call, needed);
    Carver memory(call.workspace->reserve(needed.used()));
    const Rows rows(call, memory);
    quantise_all(call, rows, Scratch(call, memory));
    multiply_all(call, rows);
}

}  // namespace

void linear_integer(const LinearCall& call) {
#if KVARN_HAS_TILES
    if (call.weight.format == Format::int8) return linear_int8_tiles(call);
    if (uses_int4_tiles(call)) return linear_int4_tiles(call);
#endif
    if (call.weight.format == Format::int8) return run<Int8>(call);
    run<Int4>(call);
}

}  // namespace kvarn::KVARN_ISA
