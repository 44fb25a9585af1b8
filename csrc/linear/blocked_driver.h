// Linear layers whose rows and panels lie in lines of 64 bytes (linear/blocked.h): what is common to bfloat16 and int8.
//
// First every row is brought into its lines. Then pieces of work are handed out. Up to 32 rows stream the weights: all
// inputs of a few panels at once, each weight read from memory exactly once. More rows multiply in one of two ways:
//
//   tiles   Pairs of row tiles and pairs of panels, each with all inputs, in the order of linear/tile_pieces.h: sums stay
//           in the tiles until they are finished.
//   dots    The inputs are gone through block by block: two panels' block of weights stays in the first cache while the
//           piece's rows, which stay in the second, pass by, and the next block of weights is brought near meanwhile.
//           Sums that wait in memory between blocks keep their bits.
//
// The cutting never shows in the results.
//
// `Form` says what the lines hold:
//
//   Form(call, memory)                      takes the memory it needs
//   using Product                           what Multiplier is to compute
//   kStepInputs                             inputs of a line
//   kExact                                  whether sums have the same bits in any order of steps
//   put(row, rows)                          brings a row of the call into its lines
//   to_floats(row, panel, panels, words)    brings sums, [panels][16] words of 32 bits, to floats, in place
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include <omp.h>

#include "core/parallel.h"
#include "core/workspace.h"
#include "linear/blocked.h"
#include "linear/epilogue.h"
#include "linear/linear.h"
#include "linear/tile_pieces.h"
#include "simd/features.h"

#if KVARN_HAS_TILES
#include "linear/block_tiles.h"
#else
#include "linear/block_dots.h"
#endif

namespace kvarn::KVARN_ISA {

constexpr std::int64_t kStreamRows = 2 * kTileHeight;   // up to so many rows stream the weights
constexpr std::int64_t kStreamPanels = 4;               // panels that one tile of rows streams together
constexpr std::int64_t kPieceRows = 256;                // rows of a piece: 1 MiB of the second cache at 2,048 inputs
constexpr std::int64_t kBlockSteps = 16;                // of two panels: 32 KiB, two thirds of the first cache
constexpr std::int64_t kMostPanels = 32;                // of a piece; fewer where threads would stand idle at the end
constexpr std::int64_t kPiecesEach = 8;                 // pieces for each thread, where there are panels enough

template <class Form>
class BlockedLinear {
  public:
    BlockedLinear(const LinearCall& call, const Form& form, const BlockedRows& rows)
        : call_(call), form_(form), rows_(rows), panel_bytes_(sections(call.weight).panel_bytes),
          panels_(call.weight.blob + sections(call.weight).values) {}

    void run() const {
        prepare();
        if (call_.rows <= kStreamRows) stream_all();
        else if constexpr (Multiplier::kUsesTiles) tile_all();
        else pass_all();
    }

  private:
    void prepare() const {
        const std::int64_t rows_each = std::max<std::int64_t>(1, kPrepareInputs / call_.weight.in_padded());
        parallel_pieces((call_.rows + rows_each - 1) / rows_each, [&](std::int64_t piece) {
            const std::int64_t end = std::min(call_.rows, (piece + 1) * rows_each);
            for (std::int64_t row = piece * rows_each; row < end; ++row) form_.put(row, rows_);
        });
    }

    // Panels of a piece, so that every thread gets its share: gate and up stay together.
    std::int64_t piece_panels(std::int64_t most, std::int64_t row_pieces) const {
        std::int64_t panels = most;
        while (panels > (call_.weight.gated ? 2 : 1) &&
               call_.weight.panels() * row_pieces < panels * kPiecesEach * omp_get_max_threads())
            panels /= 2;
        return panels;
    }

    const std::byte* step_of(std::int64_t panel, std::int64_t step) const {
        return panels_ + static_cast<std::size_t>(panel) * panel_bytes_ + static_cast<std::size_t>(step) * kStep;
    }

    void stream_all() const {
        const std::int64_t together = call_.rows > kTileHeight ? 2 : kStreamPanels;
        const std::int64_t panels = call_.weight.panels();
        // Panels are multiplied in pairs, unless there are so many threads that a piece is a single one.
        const std::int64_t most = piece_panels(2 * kStreamPanels, 1), unit = std::min<std::int64_t>(2, most);
        const TaperedPieces pieces((panels + unit - 1) / unit, most / unit);
        const std::int64_t passes = Multiplier::passes(call_.rows, static_cast<int>(together));
        parallel_pieces(pieces.count(), [&](std::int64_t piece) {
            const Multiplier multiplier(call_.rows);
            const std::int64_t first = pieces[piece].first * unit, end = std::min(panels, pieces[piece].last * unit);
            PrefetchShare share(call_.next, piece, pieces.count(), (end - first) * rows_.steps * passes);
            for (std::int64_t panel = first, count; panel < end; panel += count) {
                count = together;
                while (count > end - panel) count /= 2;
                // This thread's next piece is likely to be the one that so many threads will have taken.
                const std::int64_t then = pieces[piece + omp_get_max_threads()].first * unit;
                const std::int64_t next = panel + count < end ? panel + count : then;
                stream(multiplier, panel, static_cast<int>(count), next, passes, share);
            }
        });
    }

    void stream(const Multiplier& multiplier, std::int64_t panel, int panels, std::int64_t next, std::int64_t passes,
                PrefetchShare& share) const {
        alignas(64) std::byte sums[kStreamRows * kStreamPanels * kLine];
        const Block block{rows_.bytes, rows_.tile_bytes(), call_.rows, step_of(panel, 0), panel_bytes_, panels,
                          rows_.steps, sums, static_cast<std::size_t>(panels) * kLine, true};
        const auto multiply = [&](auto ask) {
            if (!call_.next) return multiplier.template multiply<typename Form::Product>(block, ask);
            AskForNextCall<decltype(ask)> both{ask, share};
            multiplier.template multiply<typename Form::Product>(block, both);
        };
        if (passes == 1) multiply(std::conditional_t<Multiplier::kUsesTiles, AskFurtherOn, AskForLinesFurtherOn>{});
        else multiply(AskForNextPanels{step_of(next, 0), static_cast<std::size_t>((kTileHeight + passes - 1) / passes)});
        finish(0, call_.rows, panel, panels, sums);
    }

    void tile_all() const {
        const auto tile_bytes = static_cast<std::int64_t>(rows_.tile_bytes());
        const auto panel_bytes = static_cast<std::int64_t>(panel_bytes_);
        tile_pieces(call_.rows, tile_bytes, call_.weight.panels(), panel_bytes, [&](const TilePiece& piece) {
            const Multiplier multiplier(kStreamRows);
            for (std::int64_t pair = piece.first_pair; pair < piece.last_pair; ++pair)
                for (std::int64_t panel = piece.first_panel; panel < piece.last_panel; panel += 2)
                    tile_pair(multiplier, pair * kStreamRows, panel,
                              static_cast<int>(std::min<std::int64_t>(2, piece.last_panel - panel)));
        });
    }

    // Two tiles of rows (the second may be missing) and one or two panels. Tiles are multiplied whole: what the last one
    // holds past the last row is never looked at.
    void tile_pair(const Multiplier& multiplier, std::int64_t first_row, std::int64_t panel, int panels) const {
        alignas(64) std::byte sums[kStreamRows * 2 * kLine];
        const std::int64_t rows = std::min(kStreamRows, call_.rows - first_row);
        const std::int64_t outputs = (call_.weight.gated ? 1 : panels) * kPanel;
        const std::int64_t first_output = panel / (call_.weight.gated ? 2 : 1) * kPanel;
        // Every other time from the last step to the first, where that may be: what was read last is in the first cache.
        const bool backwards = Form::kExact && (first_row / kStreamRows + panel / 2) % 2 == 1;
        const Block block{rows_.line(first_row, 0), rows_.tile_bytes(), tiles_of(rows) * kTileHeight, step_of(panel, 0),
                          panel_bytes_, panels, rows_.steps, sums, static_cast<std::size_t>(panels) * kLine, true, backwards};
        AskForTiles ask(backwards, call_.out + first_row * call_.out_stride + first_output, call_.out_stride, outputs, rows);
        multiplier.template multiply<typename Form::Product>(block, ask);
        finish(first_row, rows, panel, panels, sums);
    }

    void pass_all() const {
        const std::int64_t row_pieces = (call_.rows + kPieceRows - 1) / kPieceRows, panels = call_.weight.panels();
        const std::int64_t tiles = (tiles_of(call_.rows) + row_pieces - 1) / row_pieces;
        const std::int64_t each = piece_panels(kMostPanels, row_pieces);
        // All rows pass some panels one piece after another, while those panels are still near.
        parallel_pieces((panels + each - 1) / each * row_pieces, [&](std::int64_t piece) {
            const std::int64_t first_row = piece % row_pieces * tiles * kTileHeight;
            const std::int64_t rows = std::min(tiles * kTileHeight, call_.rows - first_row);
            const std::int64_t first = piece / row_pieces * each, end = std::min(panels, first + each);
            const Multiplier multiplier(kStreamRows);
            for (std::int64_t panel = first; panel < end; panel += 2)
                pass(multiplier, first_row, rows, panel, static_cast<int>(std::min<std::int64_t>(2, end - panel)));
        });
    }

    // Multiplies up to kPieceRows rows by one or two panels, block by block. Tiles are multiplied whole: what the last
    // one holds past the last row is never looked at.
    void pass(const Multiplier& multiplier, std::int64_t first_row, std::int64_t rows, std::int64_t panel,
              int panels) const {
        alignas(64) std::byte sums[kPieceRows * 2 * kLine];
        const std::size_t stride = static_cast<std::size_t>(panels) * kLine;
        const std::int64_t steps = rows_.steps, tiles = tiles_of(rows), pairs = (tiles + 1) / 2;
        for (std::int64_t step = 0; step < steps; step += kBlockSteps) {
            AskForNextBlock ask = next_block(panel, step, pairs);
            for (std::int64_t tile = 0; tile < tiles; tile += 2) {
                const Block block{rows_.line(first_row + tile * kTileHeight, step), rows_.tile_bytes(),
                                  std::min<std::int64_t>(2, tiles - tile) * kTileHeight, step_of(panel, step),
                                  panel_bytes_, panels, std::min(kBlockSteps, steps - step),
                                  sums + static_cast<std::size_t>(tile * kTileHeight) * stride, stride, step == 0};
                multiplier.template multiply<typename Form::Product>(block, ask);
            }
        }
        finish(first_row, rows, panel, panels, sums);
    }

    // What comes after a block of two panels, while `pairs` pairs of tiles pass: the next inputs of these panels, or
    // the first of the next two. Past the last panel nothing is read, and asking for it does no harm.
    AskForNextBlock next_block(std::int64_t panel, std::int64_t step, std::int64_t pairs) const {
        const bool last = step + kBlockSteps >= rows_.steps;
        const std::byte* next = last ? step_of(panel + 2, 0) : step_of(panel, step + kBlockSteps);
        const auto steps = static_cast<std::size_t>(
            last ? std::min(kBlockSteps, rows_.steps) : std::min(kBlockSteps, rows_.steps - step - kBlockSteps));
        const auto lines = static_cast<std::size_t>((kTileHeight + pairs - 1) / pairs);
        return {next, next + steps * kStep, steps * kStep, panel_bytes_ - steps * kStep, lines};
    }

    void finish(std::int64_t first_row, std::int64_t rows, std::int64_t panel, int panels, std::byte* sums) const {
        for (std::int64_t r = 0; r < rows; ++r, sums += static_cast<std::size_t>(panels) * kLine) {
            form_.to_floats(first_row + r, panel, panels, sums);
            finish_row(call_, first_row + r, panel, panels, reinterpret_cast<const float*>(sums));
        }
    }

    static constexpr std::int64_t kPrepareInputs = 32 * 1024;   // inputs brought into lines as one piece of work

    const LinearCall& call_;
    const Form& form_;
    BlockedRows rows_;
    std::size_t panel_bytes_;
    const std::byte* panels_;
};

template <class Form>
void run_blocked(const LinearCall& call) {
    if (call.rows == 0) return;
    const std::int64_t steps = call.weight.in_padded() / Form::kStepInputs;
    const std::int64_t bytes = tiles_of(call.rows) * steps * static_cast<std::int64_t>(kStep);
    Carver needed;
    Form(call, needed);
    needed.take<std::byte>(bytes);
    Carver memory(call.workspace->reserve(needed.used()));
    const Form form(call, memory);
    BlockedLinear<Form>(call, form, {memory.take<std::byte>(bytes), steps}).run();
}

}  // namespace kvarn::KVARN_ISA
