// Linear layers on float and bfloat16 weights.
//
// A piece of work is a few neighbouring panels for a block of rows. With few rows it streams its weights once, from
// memory straight into registers. With many it goes through the inputs block by block, so that a block of one panel
// stays in the innermost cache while all rows pass by; bfloat16 weights are widened once for all of them. Sums that
// wait in memory between blocks keep their bits, so the cutting never shows in the results.
#include <algorithm>
#include <array>
#include <utility>

#include "core/parallel.h"
#include "linear/bf16.h"
#include "linear/epilogue.h"
#include "linear/float_tile.h"
#include "linear/linear.h"
#include "linear/prepare.h"
#include "simd/simd.h"

namespace kvarn::KVARN_ISA {

namespace {

constexpr std::int64_t kRowsAtOnce = 768;      // prepared rows that stand in memory together
constexpr std::int64_t kRowBlock = 192;        // rows of a piece: their block of inputs stays in the second cache
constexpr std::int64_t kInputBlock = 256;      // a panel's weights for so many inputs take half of the first cache
constexpr std::int64_t kPiecePanels = 4;       // most panels of a piece
constexpr std::int64_t kPiecesPerThread = 8;   // fewer would leave threads idle at the end
constexpr std::int64_t kWidenRows = 13;        // from so many rows on, bfloat16 weights are widened first
constexpr std::int64_t kSerialNumbers = 32 * 1024;  // input numbers that one thread prepares sooner than a team
constexpr std::int64_t kRowGap = 16;           // floats between prepared rows: equal places of rows in other cache sets

using Tile = void (*)(const TileCall&);

template <class Lines, int R, int P>
constexpr Tile tile_that_fits() {
    if constexpr (R * P <= kTileSums) return &multiply_tile<R, P, Lines>;
    return nullptr;
}
template <class Lines, int... R>
constexpr auto tiles_of(std::integer_sequence<int, R...>) {
    return std::array{std::array{tile_that_fits<Lines, R + 1, 1>(), tile_that_fits<Lines, R + 1, 2>(),
                                 tile_that_fits<Lines, R + 1, 4>()}...};
}
// The tile of `rows` rows and 1, 2 or 4 panels.
template <class Lines>
Tile tile_of(std::int64_t rows, int panels) {
    static constexpr auto tiles = tiles_of<Lines>(std::make_integer_sequence<int, kTileRows>());
    return tiles[static_cast<std::size_t>(rows - 1)][static_cast<std::size_t>(panels / 2)];
}

// Rows of the call that stand prepared in memory.
struct PreparedRows {
    const float* x;
    std::int64_t stride;
    std::int64_t first, count;   // of the call's rows
};

// Memory of one thread.
struct Scratch {
    float* sums;       // [kRowBlock][kPiecePanels * 16]
    std::byte* wide;   // widened weights [kTilePanels][kInputBlock][16]
};
Scratch take_scratch(Carver& carver) {
    return {carver.take<float>(kRowBlock * kPiecePanels * kPanel),
            reinterpret_cast<std::byte*>(carver.take<float>(kTilePanels * kInputBlock * kPanel))};
}

struct Piece {
    std::int64_t first_row, rows;      // of the prepared rows
    std::int64_t first_panel, panels;
};

// All rows of a piece, tile by tile, on some panels and inputs. `tile` begins at the first row.
template <class Lines>
void multiply_rows(TileCall tile, std::int64_t rows, int panels) {
    const std::int64_t tiles = (rows + kTileRows - 1) / kTileRows;
    for (std::int64_t t = 0; t < tiles; ++t) {
        const std::int64_t tile_rows = rows / tiles + (t < rows % tiles ? 1 : 0);
        tile_of<Lines>(tile_rows, panels)(tile);
        tile.x += tile_rows * tile.x_stride;
        tile.sums += tile_rows * tile.sums_stride;
    }
}

// bfloat16 lines of some panels as float lines.
void widen(const TileCall& tile, int panels, std::byte* wide) {
    for (int p = 0; p < panels; ++p) {
        const std::byte* line = tile.weights + static_cast<std::size_t>(p) * tile.panel_stride;
        auto* out = reinterpret_cast<float*>(wide) + p * kInputBlock * kPanel;
        for (std::int64_t k = 0; k < tile.inputs; k += 2, line += 64, out += 2 * kPanel) {
            store(out, bf16_even(line));
            store(out + kPanel, bf16_odd(line));
        }
    }
}

void multiply_block(const TileCall& tile, Format format, std::int64_t rows, int panels, const Scratch& scratch) {
    if (format == Format::f32) {
        multiply_rows<FloatLines>(tile, rows, panels);
    } else if (rows < kWidenRows) {
        multiply_rows<Bf16Lines>(tile, rows, panels);
    } else {
        widen(tile, panels, scratch.wide);
        TileCall wide = tile;
        wide.weights = scratch.wide;
        wide.panel_stride = kInputBlock * kPanel * sizeof(float);
        wide.ahead = 0;
        multiply_rows<FloatLines>(wide, rows, panels);
    }
}

void multiply_piece(const LinearCall& call, const PreparedRows& prepared, const Piece& piece, const Scratch& scratch) {
    const PackedWeight& weight = call.weight;
    const Sections at = sections(weight);
    const std::int64_t in = weight.in_padded(), line_inputs = weight.format == Format::f32 ? 1 : 2;
    const std::int64_t input_block = piece.rows <= kTileRows ? in : kInputBlock;
    for (std::int64_t k = 0; k < in; k += input_block) {
        for (std::int64_t p = 0, step; p < piece.panels; p += step) {
            step = panels_at_once(std::min<std::int64_t>(piece.rows, kTileRows));
            while (step > piece.panels - p) step /= 2;
            const auto panel = static_cast<std::size_t>(piece.first_panel + p);
            const TileCall tile{
                prepared.x + piece.first_row * prepared.stride + k, prepared.stride,
                weight.blob + at.values + panel * at.panel_bytes + static_cast<std::size_t>(k / line_inputs * 64),
                at.panel_bytes, std::min(input_block, in - k),
                scratch.sums + p * kPanel, kPiecePanels * kPanel, k == 0, 1024};
            multiply_block(tile, weight.format, piece.rows, static_cast<int>(step), scratch);
        }
    }
    for (std::int64_t r = 0; r < piece.rows; ++r)
        finish_row(call, prepared.first + piece.first_row + r, piece.first_panel, piece.panels,
                   scratch.sums + r * kPiecePanels * kPanel);
}

void multiply(const LinearCall& call, const PreparedRows& prepared, std::byte* scratch, std::size_t scratch_bytes) {
    const std::int64_t panels = call.weight.panels();
    const std::int64_t row_blocks = (prepared.count + kRowBlock - 1) / kRowBlock;
    std::int64_t piece_panels = kPiecePanels;
    while (piece_panels > (call.weight.gated ? 2 : 1) &&
           panels * row_blocks / piece_panels < kPiecesPerThread * omp_get_max_threads())
        piece_panels /= 2;
    const std::int64_t panel_groups = (panels + piece_panels - 1) / piece_panels;
    // All row blocks of some panels come one after another, while those panels are still near.
    parallel_pieces(panel_groups * row_blocks, [&](std::int64_t index) {
        const std::int64_t block = index % row_blocks, first_panel = index / row_blocks * piece_panels;
        const std::int64_t first_row = prepared.count * block / row_blocks;
        const Piece piece{first_row, prepared.count * (block + 1) / row_blocks - first_row, first_panel,
                          std::min(piece_panels, panels - first_panel)};
        Carver carver(scratch + static_cast<std::size_t>(omp_get_thread_num()) * scratch_bytes);
        multiply_piece(call, prepared, piece, take_scratch(carver));
    });
}

void prepare(const LinearCall& call, std::int64_t first, std::int64_t count, float* x, std::int64_t stride) {
    const std::int64_t rows_each = std::max<std::int64_t>(1, kSerialNumbers / stride);
    parallel_pieces((count + rows_each - 1) / rows_each, [&](std::int64_t piece) {
        for (std::int64_t r = piece * rows_each; r < std::min(count, (piece + 1) * rows_each); ++r)
            prepare_row(call, first + r, x + r * stride);
    });
}

}  // namespace

void linear_float(const LinearCall& call) {
#if KVARN_HAS_BF16DOT
    if (call.weight.format == Format::bf16) return linear_bf16(call);
#endif
    const std::int64_t stride = call.weight.in_padded() + kRowGap;
    const auto threads = static_cast<std::size_t>(omp_get_max_threads());
    Carver measured;
    take_scratch(measured);
    const std::size_t scratch_bytes = measured.used();
    const std::int64_t rows_at_once = std::min(call.rows, kRowsAtOnce);
    std::byte* memory = call.workspace->reserve(threads * scratch_bytes +
                                                static_cast<std::size_t>(rows_at_once * stride) * sizeof(float));
    auto* x = reinterpret_cast<float*>(memory + threads * scratch_bytes);
    for (std::int64_t first = 0; first < call.rows; first += kRowsAtOnce) {
        const std::int64_t count = std::min(kRowsAtOnce, call.rows - first);
        // A few rows that need no change are read where they stand.
        const bool in_place = !call.norm && call.weight.in == call.weight.in_padded() && count <= kTileRows;
        if (!in_place) prepare(call, first, count, x, stride);
        multiply(call, in_place ? PreparedRows{call.x + first * call.x_stride, call.x_stride, first, count}
                                : PreparedRows{x, stride, first, count}, memory, scratch_bytes);
    }
}

}  // namespace kvarn::KVARN_ISA
