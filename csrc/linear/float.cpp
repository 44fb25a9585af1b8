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
constexpr std::int64_t kBlockLines = 256;      // lines of panels read by all rows in turn: half of the first cache
constexpr std::int64_t kPiecePanels = 4;       // most panels of a piece
constexpr std::int64_t kSumsStride = kPiecePanels * kPanel;  // floats between a piece's rows of sums
constexpr std::int64_t kPiecesPerThread = 8;   // fewer would leave threads idle at the end
constexpr std::int64_t kSerialNumbers = 32 * 1024;  // input numbers that one thread prepares sooner than a team
constexpr std::int64_t kAhead = 4096;          // bytes by which a tile that streams asks ahead, over all its panels
constexpr std::int64_t kAskingTiles = 4;       // more would ask for the same lines again and again
constexpr std::int64_t kRowGap = 16;           // floats between prepared rows: equal places of rows in other cache sets

// Rows of the call that stand prepared in memory.
struct PreparedRows {
    const float* x;
    std::int64_t stride;
    std::int64_t first, count;   // of the call's rows
};

struct Piece {
    std::int64_t first_row, rows;      // of the prepared rows
    std::int64_t first_panel, panels;
    std::int64_t number, of;           // among the pieces of the call
};

// All rows of a piece, tile by tile, on some panels and inputs. `tile` begins at the first row, and `tile.ask` at the
// block that comes after this one: the last tiles ask for a share of it each, so that memory is read evenly. `beside` is
// what the next call reads: each tile asks for some of it.
template <class Lines>
void multiply_rows(TileCall tile, std::int64_t rows, int panels, PrefetchShare& beside) {
    const std::int64_t tiles = (rows + kTileRows - 1) / kTileRows, asking = std::min(tiles, kAskingTiles);
    const std::byte* next = tile.ask;
    for (std::int64_t t = 0; t < tiles; ++t) {
        const std::int64_t count = rows / tiles + (t < rows % tiles ? 1 : 0), share = t - (tiles - asking);
        tile.ask = share < 0 ? tile.weights : next + tile.inputs / Lines::kInputs * 64 * share / asking;
        tile.ask_step = static_cast<std::size_t>(share < 0 ? 64 : 64 / asking);
        tile_of<Lines>(count, panels)(tile);
        beside.ask();
        tile.x += count * tile.x_stride;
        tile.sums += count * tile.sums_stride;
    }
}

template <class Lines>
void multiply_panels(const LinearCall& call, const PreparedRows& prepared, const Piece& piece, float* sums) {
    const PackedWeight& weight = call.weight;
    const Sections at = sections(weight);
    const std::int64_t in = weight.in_padded();
    const bool streams = piece.rows <= kTileRows;
    const std::int64_t together = panels_at_once(std::min<std::int64_t>(piece.rows, kTileRows));
    const std::int64_t block = streams ? in : kBlockLines / together * Lines::kInputs;
    const auto lines_of = [&](std::int64_t panel, std::int64_t k) {
        const auto place = static_cast<std::size_t>(piece.first_panel + panel) * at.panel_bytes;
        return weight.blob + at.values + place + k / Lines::kInputs * 64;
    };
    const std::int64_t tiles = (piece.rows + kTileRows - 1) / kTileRows;
    const std::int64_t asks = (piece.panels + together - 1) / together * ((in + block - 1) / block) * tiles;
    PrefetchShare beside(call.next, piece.number, piece.of, asks);
    for (std::int64_t k = 0; k < in; k += block) {
        for (std::int64_t p = 0, step; p < piece.panels; p += step) {
            step = together;
            while (step > piece.panels - p) step /= 2;
            const std::byte* next = p + step < piece.panels ? lines_of(p + step, k)
                                    : k + block < in        ? lines_of(0, k + block)
                                                            : lines_of(piece.panels, 0);
            multiply_rows<Lines>({prepared.x + piece.first_row * prepared.stride + k, prepared.stride, lines_of(p, k),
                                  at.panel_bytes, std::min(block, in - k), sums + p * kPanel, kSumsStride, k == 0,
                                  streams ? lines_of(p, k) + kAhead / step : next, 0, streams},
                                 piece.rows, static_cast<int>(step), beside);
        }
    }
}

void multiply_piece(const LinearCall& call, const PreparedRows& prepared, const Piece& piece, float* sums) {
    const bool wide = call.weight.format == Format::f32;
    (wide ? multiply_panels<FloatLines> : multiply_panels<Bf16Lines>)(call, prepared, piece, sums);
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
    const std::int64_t together = call.weight.gated ? 2 : 1;
    const TaperedPieces groups(panels / together, piece_panels / together);
    // All row blocks of some panels come one after another, while those panels are still near.
    const std::int64_t pieces = groups.count() * row_blocks;
    parallel_pieces(pieces, [&](std::int64_t index) {
        const std::int64_t block = index % row_blocks;
        const auto [first, last] = groups[index / row_blocks];
        const std::int64_t first_row = prepared.count * block / row_blocks;
        const Piece piece{first_row, prepared.count * (block + 1) / row_blocks - first_row, first * together,
                          (last - first) * together, index, pieces};
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
