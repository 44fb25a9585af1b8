// Linear layers on float and bfloat16 weights.
//
// A piece of work is a few neighbouring panels for a block of rows. With few rows it streams its weights once, from
// memory straight into registers. With many it goes through the inputs block by block, so that a block of one panel
// stays in the innermost cache while all rows pass by. Sums that wait in memory between blocks keep their bits, so the
// cutting never shows in the results. bfloat16 weights are widened in registers, where the integer units do it beside
// the multiply-adds: widening them once for all rows into memory measured 5 to 25 % slower.
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
constexpr std::int64_t kBlockLines = 256;      // lines of a panel read by all rows in turn: half of the first cache
constexpr std::int64_t kPiecePanels = 4;       // most panels of a piece
constexpr std::int64_t kSumsStride = kPiecePanels * kPanel;  // floats between a piece's rows of sums
constexpr std::int64_t kPiecesPerThread = 8;   // fewer would leave threads idle at the end
constexpr std::int64_t kSerialNumbers = 32 * 1024;  // input numbers that one thread prepares sooner than a team
constexpr std::int64_t kAhead = 4096;          // bytes that a tile asks for before it reads them, over all its panels
constexpr std::int64_t kRowGap = 16;           // floats between prepared rows: equal places of rows in other cache sets

using Tile = void (*)(const TileCall&);

template <class Lines, int R, int P>
constexpr Tile tile_that_fits() {
    if constexpr (tile_fits(R, P)) return &multiply_tile<R, P, Lines>;
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
        // The last tile finds its lines in the cache: it asks for those of the next block, which come from memory.
        if (tiles > 1 && t == tiles - 1) tile.ahead = static_cast<std::size_t>(tile.inputs / Lines::kInputs * 64);
        tile_of<Lines>(tile_rows, panels)(tile);
        tile.x += tile_rows * tile.x_stride;
        tile.sums += tile_rows * tile.sums_stride;
    }
}

void multiply_piece(const LinearCall& call, const PreparedRows& prepared, const Piece& piece, float* sums) {
    const PackedWeight& weight = call.weight;
    const Sections at = sections(weight);
    const bool wide = weight.format == Format::f32;
    const std::int64_t in = weight.in_padded(), line_inputs = wide ? FloatLines::kInputs : Bf16Lines::kInputs;
    const std::int64_t block = piece.rows <= kTileRows ? in : kBlockLines * line_inputs;
    for (std::int64_t k = 0; k < in; k += block) {
        for (std::int64_t p = 0, step; p < piece.panels; p += step) {
            step = panels_at_once(std::min<std::int64_t>(piece.rows, kTileRows));
            while (step > piece.panels - p) step /= 2;
            const auto panel = static_cast<std::size_t>(piece.first_panel + p);
            const std::byte* lines = weight.blob + at.values + panel * at.panel_bytes + k / line_inputs * 64;
            const TileCall tile{prepared.x + piece.first_row * prepared.stride + k, prepared.stride,
                                lines, at.panel_bytes, std::min(block, in - k), sums + p * kPanel, kSumsStride, k == 0,
                                static_cast<std::size_t>(kAhead / step)};
            (wide ? multiply_rows<FloatLines> : multiply_rows<Bf16Lines>)(tile, piece.rows, static_cast<int>(step));
        }
    }
    for (std::int64_t r = 0; r < piece.rows; ++r)
        finish_row(call, prepared.first + piece.first_row + r, piece.first_panel, piece.panels, sums + r * kSumsStride);
}

// `sums`: [threads][kRowBlock][kSumsStride], scratch.
void multiply(const LinearCall& call, const PreparedRows& prepared, float* sums) {
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
        multiply_piece(call, prepared, piece, sums + omp_get_thread_num() * kRowBlock * kSumsStride);
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
    float *sums = nullptr, *x = nullptr;
    const auto carve = [&](std::byte* memory) {
        Carver carver(memory);
        sums = carver.take<float>(omp_get_max_threads() * kRowBlock * kSumsStride);
        x = carver.take<float>(std::min(call.rows, kRowsAtOnce) * stride);
        return carver.used();
    };
    carve(call.workspace->reserve(carve(nullptr)));
    for (std::int64_t first = 0; first < call.rows; first += kRowsAtOnce) {
        const std::int64_t count = std::min(kRowsAtOnce, call.rows - first);
        // A few rows that need no change are read where they stand.
        const bool in_place = !call.norm && call.weight.in == call.weight.in_padded() && count <= kTileRows;
        if (!in_place) prepare(call, first, count, x, stride);
        multiply(call, in_place ? PreparedRows{call.x + first * call.x_stride, call.x_stride, first, count}
                                : PreparedRows{x, stride, first, count}, sums);
    }
}

}  // namespace kvarn::KVARN_ISA
