// How many rows by many panels are cut into pieces of work for tiles.
//
// Two tiles of rows by two panels read a line of each for every product, so both should be near: some rows and some
// panels stay in the second cache together. The rows of a block are multiplied by all panels, a group of them at a time,
// before the next block's, so that rows come from afar once, and panels once for each block. Threads take the groups of
// one block in turn. Where there would be too few pieces groups are smaller, and then the rows of a block are divided too.
#pragma once

#include <algorithm>
#include <cstdint>

#include <omp.h>

#include "core/parallel.h"
#include "linear/blocked.h"

namespace kvarn::KVARN_ISA {

constexpr std::int64_t kTilePairRows = 2 * kTileHeight;
constexpr std::int64_t kNearRowBytes = 1024 * 1024;      // of a block of rows, half of the second cache
constexpr std::int64_t kNearPanelBytes = 512 * 1024;     // of a group of panels, a quarter of it
constexpr std::int64_t kNearPanels = 16;                 // of a group at most
constexpr std::int64_t kTilePiecesEach = 8;              // pieces for each thread, where there are panels enough
constexpr std::int64_t kFewestPairs = 4;                 // of a piece, where the rows of a block are divided

// Some panels, an even number but for the last ones, and some pairs of row tiles.
struct TilePiece {
    std::int64_t first_panel, last_panel, first_pair, last_pair;    // one past the last
};

// Panels of a group at most.
inline std::int64_t near_panels(std::int64_t panel_bytes) {
    return std::clamp<std::int64_t>(kNearPanelBytes / panel_bytes / 2 * 2, 2, kNearPanels);
}

// Calls body(piece) for all pieces. `panel_bytes`: of a panel as it is multiplied; `tile_bytes`: of a tile of rows.
template <class Body>
void tile_pieces(std::int64_t rows, std::int64_t tile_bytes, std::int64_t panels, std::int64_t panel_bytes, const Body& body) {
    const std::int64_t pairs = (tiles_of(rows) + 1) / 2, wanted = kTilePiecesEach * omp_get_max_threads();
    const std::int64_t blocks = std::min(pairs, (2 * pairs * tile_bytes + kNearRowBytes - 1) / kNearRowBytes);
    std::int64_t each = near_panels(panel_bytes);
    while (each > 2 && (panels + each - 1) / each * blocks < wanted) each = std::max<std::int64_t>(2, each / 4 * 2);
    const std::int64_t groups = (panels + each - 1) / each, most_parts = std::max<std::int64_t>(1, pairs / blocks / kFewestPairs);
    const std::int64_t parts = std::clamp<std::int64_t>((wanted + groups * blocks - 1) / (groups * blocks), 1, most_parts);
    parallel_pieces(blocks * groups * parts, [&](std::int64_t number) {
        const std::int64_t block = number / (groups * parts), panel = number / parts % groups * each, part = number % parts;
        const std::int64_t first = pairs * block / blocks, count = pairs * (block + 1) / blocks - first;
        body(TilePiece{panel, std::min(panels, panel + each), first + count * part / parts, first + count * (part + 1) / parts});
    });
}

}  // namespace kvarn::KVARN_ISA
