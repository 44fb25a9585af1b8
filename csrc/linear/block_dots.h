// A block of rows and panels multiplied by bfloat16 dot products in vector registers. Each sum is one chain over the
// inputs in ascending order (the second of each pair first), whatever the block's shape.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <utility>

#include "linear/blocked.h"
#include "simd/bf16_dot.h"

namespace kvarn::KVARN_ISA {

constexpr int kBlockRows = 8;        // rows multiplied together
constexpr int kBlockSums = 24;       // sums they and their panels may have, in sixteens

// R rows of one tile times P panels.
template <int R, int P, class Ask>
void multiply_dots(const Block& block, Ask& ask) {
    F16 sums[R][P];
    const auto sums_of = [&](int r, int p) {
        return reinterpret_cast<float*>(block.sums + static_cast<std::size_t>(r) * block.sums_stride) + 16 * p;
    };
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) sums[r][p] = block.begins ? zero() : load(sums_of(r, p));
    const std::byte* rows = block.rows;
    const std::byte* panels = block.panels;
    for (std::int64_t s = 0; s < block.steps; ++s, rows += kStep, panels += kStep) {
        for (int p = 0; p < P; ++p) ask.panel(panels + static_cast<std::size_t>(p) * block.panel_stride);
        for (std::size_t pair = 0; pair < 16; ++pair) {
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) {
                std::uint32_t x;
                std::memcpy(&x, rows + static_cast<std::size_t>(r) * kLine + 4 * pair, 4);
#pragma GCC unroll 4
                for (int p = 0; p < P; ++p) {
                    const std::byte* step = panels + static_cast<std::size_t>(p) * block.panel_stride;
                    sums[r][p] = add_dots(sums[r][p], step + pair * kLine, x);
                }
            }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) store(sums_of(r, p), sums[r][p]);
}

class Multiplier {
  public:
    static constexpr bool kUsesTiles = false;

    explicit Multiplier(std::int64_t) {}

    // How often a panel is read to multiply it by so many rows, `panels` at once.
    static std::int64_t passes(std::int64_t rows, int panels) {
        std::int64_t count = 0;
        for (std::int64_t first = 0; first < rows; first += kTileHeight)
            count += groups_of(std::min(kTileHeight, rows - first), panels);
        return count;
    }

    template <class Product, class Ask>
    void multiply(const Block& block, Ask& ask) const {
        [[maybe_unused]] const Bf16DotScope scope{};
        for (std::int64_t first = 0; first < block.row_count; first += kTileHeight) {
            Block tile = block;
            tile.rows += static_cast<std::size_t>(first / kTileHeight) * block.tile_stride;
            tile.sums += static_cast<std::size_t>(first) * block.sums_stride;
            tile.row_count = std::min(kTileHeight, block.row_count - first);
            multiply_tile(tile, ask);
        }
    }

  private:
    template <class Ask>
    using Dots = void (*)(const Block&, Ask&);

    template <class Ask, int R, int P>
    static constexpr Dots<Ask> dots_that_fit() {
        if constexpr (R * P <= kBlockSums) return &multiply_dots<R, P, Ask>;
        return nullptr;
    }
    // Of 1 to kBlockRows rows and 1, 2 or 4 panels.
    template <class Ask, int... R>
    static constexpr auto dots_of(std::integer_sequence<int, R...>) {
        return std::array{std::array{dots_that_fit<Ask, R + 1, 1>(), dots_that_fit<Ask, R + 1, 2>(),
                                     dots_that_fit<Ask, R + 1, 4>()}...};
    }

    static std::int64_t groups_of(std::int64_t rows, int panels) {
        const std::int64_t most = std::min(kBlockRows, kBlockSums / panels);
        return (rows + most - 1) / most;
    }

    // Rows of one tile, in groups of nearly the same size.
    template <class Ask>
    static void multiply_tile(Block tile, Ask& ask) {
        static constexpr auto dots = dots_of<Ask>(std::make_integer_sequence<int, kBlockRows>());
        const std::int64_t rows = tile.row_count, groups = groups_of(rows, tile.panel_count);
        for (std::int64_t g = 0; g < groups; ++g) {
            const std::int64_t count = rows / groups + (g < rows % groups ? 1 : 0);
            dots[static_cast<std::size_t>(count - 1)][static_cast<std::size_t>(tile.panel_count / 2)](tile, ask);
            tile.rows += static_cast<std::size_t>(count) * kLine;
            tile.sums += static_cast<std::size_t>(count) * tile.sums_stride;
        }
    }
};

// There is one kind of product here.
struct Bf16Product {};

}  // namespace kvarn::KVARN_ISA
