#include "linear/int4_tiles.h"

#if KVARN_HAS_TILES

#include <algorithm>
#include <cstdint>
#include <cstring>

#include <omp.h>

#include "core/parallel.h"
#include "core/workspace.h"
#include "linear/block_tiles.h"
#include "linear/epilogue.h"
#include "linear/prepare.h"
#include "linear/quantise_row.h"
#include "linear/tile_pieces.h"
#include "simd/byte_dot.h"

namespace kvarn::KVARN_ISA {

namespace {

constexpr std::int64_t kFewestRows = 17;         // fewer are multiplied as fast in vector registers
constexpr std::int64_t kStepInputs = 64;
constexpr std::int64_t kBlockSteps = kScaleInputs / kStepInputs;
constexpr std::int64_t kPreparedInputs = 32 * 1024;

// Rows as tiles read them, quantised by blocks, and the panels of a piece of work as signed bytes.
class Int4Tiles {
  public:
    Int4Tiles(const LinearCall& call, Carver& memory)
        : call_(call), weight_(call.weight), at_(sections(call.weight)), in_(weight_.in_padded()),
          blocks_((in_ + kScaleInputs - 1) / kScaleInputs),
          rows_{memory.take<std::byte>(tiles_of(call.rows) * in_ * kTileHeight), in_ / kStepInputs},
          row_scales_(memory.take<float>(call.rows * blocks_)),
          prepared_(memory.take<float>(omp_get_max_threads() * in_)),
          quantised_(memory.take<std::int8_t>(omp_get_max_threads() * in_)),
          panels_(memory.take<std::int8_t>(omp_get_max_threads() * near_panels(panel_bytes()) * panel_bytes())) {}

    void run() const {
        const std::int64_t rows_each = std::max<std::int64_t>(1, kPreparedInputs / in_);
        parallel_pieces((call_.rows + rows_each - 1) / rows_each, [&](std::int64_t piece) {
            const std::int64_t end = std::min(call_.rows, (piece + 1) * rows_each);
            for (std::int64_t row = piece * rows_each; row < end; ++row) put(row);
        });
        const auto tile_bytes = static_cast<std::int64_t>(rows_.tile_bytes());
        tile_pieces(call_.rows, tile_bytes, weight_.panels(), panel_bytes(), [&](const TilePiece& piece) {
            if (piece.first_pair == piece.last_pair) return;
            std::int8_t* bytes = panels_ + omp_get_thread_num() * near_panels(panel_bytes()) * panel_bytes();
            for (std::int64_t panel = piece.first_panel; panel < piece.last_panel; ++panel)
                to_bytes(panel, bytes + (panel - piece.first_panel) * panel_bytes());
            const Multiplier multiplier(kTilePairRows);
            for (std::int64_t pair = piece.first_pair; pair < piece.last_pair; ++pair)
                for (std::int64_t panel = piece.first_panel; panel < piece.last_panel; panel += 2)
                    multiply(multiplier, pair * kTilePairRows, panel,
                             static_cast<int>(std::min<std::int64_t>(2, piece.last_panel - panel)),
                             reinterpret_cast<const std::byte*>(bytes + (panel - piece.first_panel) * panel_bytes()));
        });
    }

  private:
    std::int64_t panel_bytes() const { return in_ * kPanel; }    // of a panel as bytes

    void put(std::int64_t row) const {
        float* x = prepared_ + omp_get_thread_num() * in_;
        std::int8_t* q = quantised_ + omp_get_thread_num() * in_;
        prepare_row(call_, row, x);
        quantise_blocks(x, in_, kScaleInputs, q, row_scales_ + row * blocks_);
        for (std::int64_t step = 0; step < rows_.steps; ++step)
            std::memcpy(rows_.line(row, step), q + step * kStepInputs, kLine);
    }

    // A panel's weights, less their zero points and times their sub-scales, as [in / 4][16][4].
    void to_bytes(std::int64_t panel, std::int8_t* out) const {
        const auto* values = reinterpret_cast<const std::uint8_t*>(weight_.blob + at_.values + panel * at_.panel_bytes);
        const auto* zeros = reinterpret_cast<const std::uint8_t*>(weight_.blob + at_.zeros) + panel * weight_.groups() * kPanel;
        const auto* sub_scales = reinterpret_cast<const std::int8_t*>(weight_.blob + at_.sub_scales) +
                                  panel * (in_ / kSubScaled) * kPanel;
        for (std::int64_t k = 0; k < in_; k += kSubScaled) {
            const I16 zero = weight_.has_zeros ? from_uint8(zeros + k / weight_.group * kPanel) : splat_int(8);
            const I16 sub_scale =
                weight_.has_sub_scales ? from_int8_words(sub_scales + k / kSubScaled * kPanel) : splat_int(1);
            for (std::int64_t line = 0; line < kSubScaled / (2 * kQuad); ++line, values += kLine, out += 2 * kLine) {
                const I16 both = load_ints(values);
                store_ints(out, scale_bytes(low_nibbles(both), twice(zero), twice(sub_scale)));
                store_ints(out + kLine, scale_bytes(high_nibbles(both), twice(zero), twice(sub_scale)));
            }
        }
    }

    // Two tiles of rows (the second may be missing) by one or two panels.
    void multiply(const Multiplier& multiplier, std::int64_t first_row, std::int64_t panel, int panels,
                  const std::byte* bytes) const {
        alignas(64) std::int32_t dots[kTilePairRows * 2 * kPanel];
        alignas(64) float totals[kTilePairRows * 2 * kPanel] = {};
        const std::int64_t rows = std::min(kTilePairRows, call_.rows - first_row);
        AskForTiles ask(false, nullptr, 0, 0, 0);
        for (std::int64_t block = 0; block < blocks_; ++block) {
            const std::int64_t step = block * kBlockSteps;
            multiplier.template multiply<Int8Product>(
                {rows_.line(first_row, step), rows_.tile_bytes(), tiles_of(rows) * kTileHeight,
                 bytes + static_cast<std::size_t>(step) * kStep, static_cast<std::size_t>(in_ * kPanel), panels,
                 std::min(kBlockSteps, rows_.steps - step), reinterpret_cast<std::byte*>(dots),
                 static_cast<std::size_t>(panels) * kLine, true},
                ask);
            add_block(first_row, rows, panel, panels, block, dots, totals);
        }
        for (std::int64_t r = 0; r < rows; ++r)
            finish_row(call_, first_row + r, panel, panels, totals + r * panels * kPanel);
    }

    void add_block(std::int64_t first_row, std::int64_t rows, std::int64_t panel, int panels, std::int64_t block,
                   const std::int32_t* dots, float* totals) const {
        const auto* scales = reinterpret_cast<const std::uint16_t*>(weight_.blob + at_.scales);
        F16 of_weights[2];
        for (int p = 0; p < panels; ++p)
            of_weights[p] = from_half(scales + ((panel + p) * weight_.groups() + block * kScaleInputs / weight_.group) * kPanel);
        for (std::int64_t r = 0; r < rows; ++r) {
            const F16 of_row = splat(row_scales_[(first_row + r) * blocks_ + block]);
            for (int p = 0; p < panels; ++p, dots += kPanel, totals += kPanel)
                store(totals, fma(from_int32(dots), mul(of_row, of_weights[p]), load(totals)));
        }
    }

    const LinearCall& call_;
    const PackedWeight& weight_;
    const Sections at_;
    const std::int64_t in_, blocks_;
    const BlockedRows rows_;
    float* const row_scales_;           // [rows][blocks]
    float* const prepared_;             // [threads][in]: one row of each
    std::int8_t* const quantised_;      // likewise
    std::int8_t* const panels_;         // [threads][panels of a piece][in / 4][16][4]
};

}  // namespace

bool uses_int4_tiles(const LinearCall& call) {
    return call.weight.scale_inputs() == kScaleInputs && call.rows >= kFewestRows;
}

void linear_int4_tiles(const LinearCall& call) {
    Carver needed;
    Int4Tiles(call, needed);
    Carver memory(call.workspace->reserve(needed.used()));
    Int4Tiles(call, memory).run();
}

}  // namespace kvarn::KVARN_ISA

#endif
