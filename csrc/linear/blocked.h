// Rows and panels that both lie in lines of 64 bytes, as AMX multiplies them.
//
// A step is what one line of a row holds: 32 bfloat16 numbers or 64 signed bytes, and 16 lines (1 KiB) of a panel. Rows
// lie in tiles of 16, [tile][step][16][64 bytes], so that a step of a tile too is 1 KiB in one piece.
#pragma once

#include <cstddef>
#include <cstdint>

#include "linear/prefetch.h"

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
    bool backwards = false;      // from the last step to the first; by tiles only
};

// Calls into the caches what will be read next: `panel` is told of each step of a panel that is about to be read, `rows`
// of each step of a tile of rows, and, where products are of lines, `line` of each line of a panel. Asking for many lines
// at once makes those that are needed wait, so it is done little by little wherever there is something to do between.
//
// Where tiles read each weight once: the weights a little further on in the same panel.
struct AskFurtherOn {
    static constexpr std::size_t kDistance = 2 * kStep;
    void panel(const std::byte* step) const {
        for (std::size_t i = 0; i < kStep; i += kLine) __builtin_prefetch(step + kDistance + i);
    }
    void rows(const std::byte*) const {}
};
// Where lines are read once: as many lines further on in the same panel.
struct AskForLinesFurtherOn {
    static constexpr std::size_t kDistance = 4 * kStep;
    void panel(const std::byte*) const {}
    void line(const std::byte* line) const { __builtin_prefetch(line + kDistance); }
};
// Where panels are read several times, for some rows each time: the panels after them, brought to the second cache little
// by little meanwhile, so that the memory is never idle.
struct AskForNextPanels {
    const std::byte* at;
    std::size_t lines;   // at each step of a panel

    void panel(const std::byte*) {
        for (std::size_t i = 0; i < lines; ++i, at += kLine) __builtin_prefetch(at, 0, 2);
    }
    void line(const std::byte*) const {}
    void rows(const std::byte*) const {}
};
// One of these, and beside it what the call after this one reads.
template <class Ask>
struct AskForNextCall {
    Ask own;
    PrefetchShare& share;

    void panel(const std::byte* step) {
        own.panel(step);
        share.ask();
    }
    void line(const std::byte* line) const { own.line(line); }
    void rows(const std::byte* step) const { own.rows(step); }
};
// Where tiles multiply two tiles of rows by panels that both stay in the second cache: what comes two steps later in
// either, and the lines in which the outputs will be written, a row of them at each step of a panel.
struct AskForTiles {
    std::ptrdiff_t distance;
    std::byte* out;
    std::size_t out_stride, out_bytes;
    std::int64_t out_rows;

    AskForTiles(bool backwards, float* first, std::int64_t stride, std::int64_t floats, std::int64_t count)
        : distance(static_cast<std::ptrdiff_t>(2 * kStep) * (backwards ? -1 : 1)), out(reinterpret_cast<std::byte*>(first)),
          out_stride(static_cast<std::size_t>(stride) * sizeof(float)),
          out_bytes(static_cast<std::size_t>(floats) * sizeof(float)), out_rows(count) {}

    void panel(const std::byte* step) {
        rows(step);
        if (out_rows-- <= 0) return;
        for (std::size_t i = 0; i < out_bytes; i += kLine) __builtin_prefetch(out + i, 1);
        out += out_stride;
    }
    void rows(const std::byte* step) const {
        for (std::size_t i = 0; i < kStep; i += kLine) __builtin_prefetch(step + distance + i);
    }
};
// Where dot products multiply a block of weights by many rows: the block after it, brought to the second cache little
// by little while the rows pass: `lines` at each step of a panel, in runs of `run` bytes with `gap` bytes between.
struct AskForNextBlock {
    const std::byte* at;
    const std::byte* run_end;
    std::size_t run, gap, lines;

    void panel(const std::byte*) {
        for (std::size_t i = 0; i < lines; ++i, at += kLine) {
            if (at == run_end) {
                at += gap;
                run_end = at + run;
            }
            __builtin_prefetch(at, 0, 2);
        }
    }
    void line(const std::byte*) const {}
};

}  // namespace kvarn::KVARN_ISA
