// The register tile of the float kernels: sums of a few rows and a few panels, held in registers over many inputs.
#pragma once

#include <cstddef>
#include <array>
#include <cstdint>
#include <utility>

#include "linear/linear.h"
#include "linear/prefetch.h"
#include "simd/simd.h"

namespace kvarn::KVARN_ISA {

// Rows of the largest tile, and sums (in sixteens) up to which a tile of fewer rows takes several panels: one chain of
// sums waits for its own multiply-adds, so at least eight registers of sums keep a processor busy; with a second
// panel beside the others in few registers, some would wait in memory.
#if KVARN_WIDE
constexpr int kTileRows = 12;
constexpr int kPanelSums = 24;
#else
constexpr int kTileRows = 6;
constexpr int kPanelSums = 4;
#endif
constexpr int kTilePanels = 4;

constexpr bool tile_fits(std::int64_t rows, int panels) {
    return rows <= kTileRows && (panels == 1 || (panels <= kTilePanels && rows * panels <= kPanelSums));
}
constexpr int panels_at_once(std::int64_t rows) {
    int panels = kTilePanels;
    while (!tile_fits(rows, panels)) panels /= 2;
    return panels;
}

// How weights lie in a panel's lines of 64 bytes.
struct FloatLines {
    static constexpr int kInputs = 1;
    static F16 weights(const std::byte* line, int) { return load(reinterpret_cast<const float*>(line)); }
};
struct Bf16Lines {
    static constexpr int kInputs = 2;
    static F16 weights(const std::byte* line, int input) { return input ? bf16_odd(line) : bf16_even(line); }
};

struct TileCall {
    const float* x;              // first input of the first row
    std::int64_t x_stride;       // floats from row to row
    const std::byte* weights;    // line of the first input in the first panel
    std::size_t panel_stride;    // bytes from panel to panel
    std::int64_t inputs;         // a multiple of kInPad
    float* sums;                 // [rows][panels][16], sums_stride floats from row to row
    std::int64_t sums_stride;
    bool begins;                 // sums begin at zero, else with what stands there
    const std::byte* ask;        // lines that will be needed next, in the first panel: asked for meanwhile,
    std::size_t ask_step;        // so many bytes further at each line
    bool once;                   // they will be read once: they go past the outer caches, which keep what they hold
};

// Adds x * W of R rows and P panels to their sums, inputs in ascending order.
template <int R, int P, class Lines>
void multiply_tile(const TileCall& call) {
    F16 sum[R][P];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p)
            sum[r][p] = call.begins ? zero() : load(call.sums + r * call.sums_stride + p * kPanel);
    const std::byte* line = call.weights;
    const std::byte* ask = call.ask;
    const float* x = call.x;
    for (std::int64_t k = 0; k < call.inputs; k += Lines::kInputs, line += 64, ask += call.ask_step, x += Lines::kInputs) {
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) {
            if (call.once) prefetch_once(ask + p * call.panel_stride);
            else __builtin_prefetch(ask + p * call.panel_stride);
        }
#pragma GCC unroll 2
        for (int i = 0; i < Lines::kInputs; ++i) {
#pragma GCC unroll 4
            for (int p = 0; p < P; ++p) {
                const F16 w = Lines::weights(line + p * call.panel_stride, i);
#pragma GCC unroll 16
                for (int r = 0; r < R; ++r) sum[r][p] = settled(fma(splat(x[r * call.x_stride + i]), w, sum[r][p]));
            }
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) store(call.sums + r * call.sums_stride + p * kPanel, sum[r][p]);
}

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

}  // namespace kvarn::KVARN_ISA
