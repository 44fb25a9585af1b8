// A block of rows and panels multiplied by AMX tiles: four tiles of sums at most, each fed by one tile of rows and one
// of a panel. Each sum is one chain of tile products over the steps, in ascending order unless the block says otherwise,
// whatever its shape.
#pragma once

#include <algorithm>
#include <cstdint>

#include "linear/blocked.h"
#include "simd/tiles.h"

namespace kvarn::KVARN_ISA {

struct Bf16Product {
    template <int C, int A, int B>
    static void add() { tile_dot_bf16<C, A, B>(); }
};
struct Int8Product {
    template <int C, int A, int B>
    static void add() { tile_dot_int8<C, A, B>(); }
};

// Tiles 0 to 3 hold sums (of the second tile of rows: 2 and 3), 4 and 5 rows, the rest take the panels' steps in turn.
constexpr int kRowTile = 4;
constexpr int sum_tile(int r, int p) { return 2 * r + p; }

template <class Product, int R, int P, class Ask>
void multiply_tiles(const Block& block, Ask& ask) {
    static_assert(R * P <= kRowTile && R <= 2);
    const auto sums_of = [&](int r, int p) {
        return block.sums + static_cast<std::size_t>(r) * kTileHeight * block.sums_stride +
               static_cast<std::size_t>(p) * kLine;
    };
    each<R * P>([&](auto i) {
        constexpr int tile = sum_tile(i / P, i % P);
        if (block.begins) tile_zero<tile>();
        else tile_load<tile>(sums_of(i / P, i % P), block.sums_stride);
    });
    const std::ptrdiff_t first = block.backwards ? (block.steps - 1) * static_cast<std::ptrdiff_t>(kStep) : 0;
    const std::ptrdiff_t stride = block.backwards ? -static_cast<std::ptrdiff_t>(kStep) : static_cast<std::ptrdiff_t>(kStep);
    const std::byte* rows = block.rows + first;
    const std::byte* panels = block.panels + first;
    for (std::int64_t s = 0; s < block.steps; ++s, rows += stride, panels += stride) {
        each<R>([&](auto r) {
            ask.rows(rows + r * block.tile_stride);
            tile_load<kRowTile + r>(rows + r * block.tile_stride, kLine);
        });
        each<P>([&](auto p) {
            constexpr int panel = kRowTile + R + p % (8 - kRowTile - R);
            const std::byte* step = panels + p * block.panel_stride;
            ask.panel(step);
            tile_load<panel>(step, kLine);
            each<R>([&](auto r) { Product::template add<sum_tile(r, p), kRowTile + r, panel>(); });
        });
    }
    each<R * P>([&](auto i) { tile_store<sum_tile(i / P, i % P)>(sums_of(i / P, i % P), block.sums_stride); });
}

// The tiles of one thread, while it multiplies blocks of up to `rows` rows: 16 in each full tile, what is left in the
// second where there are fewer than 32.
class Multiplier {
  public:
    static constexpr bool kUsesTiles = true;

    explicit Multiplier(std::int64_t rows) : scope_(shapes(rows)) {}

    // How often a panel is read to multiply it by so many rows, up to 32.
    static std::int64_t passes(std::int64_t, int) { return 1; }

    template <class Product, class Ask>
    void multiply(const Block& block, Ask& ask) const {
        const bool two = block.row_count > kTileHeight;
        switch (block.panel_count) {
            case 1: return two ? multiply_tiles<Product, 2, 1>(block, ask) : multiply_tiles<Product, 1, 1>(block, ask);
            case 2: return two ? multiply_tiles<Product, 2, 2>(block, ask) : multiply_tiles<Product, 1, 2>(block, ask);
            default: return multiply_tiles<Product, 1, 4>(block, ask);
        }
    }

  private:
    static TileShapes shapes(std::int64_t rows) {
        const std::int64_t first = std::min(rows, kTileHeight), second = std::min(rows - first, kTileHeight);
        TileShapes shapes;
        for (int t = 0; t < kRowTile; ++t) shapes.set(t, second && t >= 2 ? second : first);
        shapes.set(kRowTile, first);
        for (int t = kRowTile + 1; t < 8; ++t) shapes.set(t, kTileHeight);
        if (second) shapes.set(kRowTile + 1, second);
        return shapes;
    }
    TileScope scope_;
};

}  // namespace kvarn::KVARN_ISA
