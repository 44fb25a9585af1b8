// Rows and panels that both lie in lines of 64 bytes, as AMX multiplies them.
//
// A step is what one line of a row holds: 32 bfloat16 numbers or 64 signed bytes, and 16 lines (1 KiB) of a panel. Rows
// lie in tiles of 16, [tile][step][16][64 bytes], so that a step of a tile too is 1 KiB in one piece.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvarn::KVARN_ISA {

constexpr std::int64_t kTileHeight = 16;
constexpr std::size_t kLine = 64;
constexpr std::size_t kStep = kTileHeight * kLine;

constexpr std::int64_t tiles_of(std::int64_t rows) { return (rows + kTileHeight - 1) / kTileHeight; }

struct BlockedRows {
    std::byte* bytes;
    std::int64_t steps;

    std::size_t tile_bytes() const { return static_cast<std::size_t>(steps) * kStep; }
    // The line of one row and step; the row's next step is kStep bytes on.
    std::byte* line(std::int64_t row, std::int64_t step) const {
        return bytes + static_cast<std::size_t>(row / kTileHeight) * tile_bytes() +
               static_cast<std::size_t>(step) * kStep + static_cast<std::size_t>(row % kTileHeight) * kLine;
    }
};

// Some steps of up to two tiles of rows and up to four panels. Sums are words of 32 bits, [rows][panels][16].
struct Block {
    const std::byte* rows;       // first step of the first tile
    std::size_t tile_stride;     // bytes from tile to tile
    std::int64_t row_count;
    const std::byte* panels;     // first step of the first panel
    std::size_t panel_stride;    // bytes from panel to panel
    int panel_count;             // 1, 2 or 4; 4 for one tile only
    std::int64_t steps;
    std::byte* sums;
    std::size_t sums_stride;     // bytes from row to row
    bool begins;                 // sums begin at zero, else with what stands there
};

// Asks for the weights that will be read next, as a block's panels are read step by step.
//
// Where each weight is used once, they are those a little further on in the same panel.
struct AskFurtherOn {
    static constexpr std::size_t kDistance = 2 * kStep;
    void operator()(const std::byte* step) const {
        for (std::size_t i = 0; i < kStep; i += kLine) __builtin_prefetch(step + kDistance + i);
    }
};
// Where a block of weights meets many rows, they are those of the block after it, brought to the second cache little by
// little while the rows pass: `lines` at each step of a panel, in runs of `run` bytes with `gap` bytes between.
struct AskForNextBlock {
    const std::byte* at;
    const std::byte* run_end;
    std::size_t run, gap, lines;

    void operator()(const std::byte*) {
        for (std::size_t i = 0; i < lines; ++i, at += kLine) {
            if (at == run_end) {
                at += gap;
                run_end = at + run;
            }
            __builtin_prefetch(at, 0, 2);
        }
    }
};

}  // namespace kvarn::KVARN_ISA
