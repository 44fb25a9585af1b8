// Rows times lines of adapters. A step of many requests reads many adapters for one or two rows each: weights come from
// memory once and are used once or twice. So they are read in the order in which they lie, in long runs, with few
// instructions between, and with several chains of sums, since one would wait for its own multiply-adds.
//
// Order of sums: line l of a panel is added to chain l % kChains, and the chains are added in a fixed tree.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <utility>

#include "linear/adapters.h"
#include "linear/float_tile.h"
#include "simd/simd.h"

namespace kvarn::KVARN_ISA {

#if KVARN_WIDE
constexpr int kChains = 4, kChainRows = 6;   // of each row; rows whose chains fit into registers
#else
constexpr int kChains = 2, kChainRows = 3;
#endif
constexpr std::uintptr_t kLinesAhead = 4096;   // bytes by which lines are asked for ahead

template <int R>
using Sums = F16[R][kChains];

// Some rows times some panels: sums [row][panel][16].
struct PanelProduct {
    std::int64_t first_line, lines;     // of the first panel; lines of each
    std::int64_t panels;
    const float* x;
    std::int64_t x_stride;              // floats from row to row
    float* sums;
    std::int64_t sums_stride;           // floats from row to row
    std::int64_t rows;
};

template <int R>
[[gnu::always_inline]] inline void clear(Sums<R>& sums) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int c = 0; c < kChains; ++c) sums[r][c] = zero();
}

// Adds x * W over `count` lines of one panel, a multiple of kChains.
template <class Lines, int R>
[[gnu::always_inline]] inline void add_lines(const std::byte* line, std::int64_t count, const float* x,
                                             std::int64_t x_stride, Sums<R>& sums) {
    for (std::int64_t l = 0; l < count; l += kChains, line += kChains * 64, x += kChains * Lines::kInputs) {
#pragma GCC unroll 4
        for (int c = 0; c < kChains; ++c) {
            const auto ahead = reinterpret_cast<std::uintptr_t>(line + c * 64) + kLinesAhead;
            __builtin_prefetch(reinterpret_cast<const void*>(ahead));
#pragma GCC unroll 2
            for (int i = 0; i < Lines::kInputs; ++i) {
                const F16 w = Lines::weights(line + c * 64, i);
#pragma GCC unroll 8
                for (int r = 0; r < R; ++r)
                    sums[r][c] = settled(fma(splat(x[r * x_stride + c * Lines::kInputs + i]), w, sums[r][c]));
            }
        }
    }
}

template <int R>
[[gnu::always_inline]] inline void store_sums(const Sums<R>& sums, float* out, std::int64_t stride) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
        const auto& chain = sums[r];
        if constexpr (kChains == 2) store(out + r * stride, add(chain[0], chain[1]));
        else store(out + r * stride, add(add(chain[0], chain[2]), add(chain[1], chain[3])));
    }
}

// R rows times panels that are neighbours in memory, of whole groups of kChains lines.
template <class Lines, int R>
void multiply_run(const std::byte* line, const PanelProduct& product) {
    float* out = product.sums;
    for (std::int64_t p = 0; p < product.panels; ++p, line += product.lines * 64, out += kPanel) {
        Sums<R> sums;
        clear<R>(sums);
        add_lines<Lines, R>(line, product.lines, product.x, product.x_stride, sums);
        store_sums<R>(sums, out, product.sums_stride);
    }
}

// R rows times one panel, wherever its lines are: those around the end of a page, and the last ones, are copied, with
// zeros behind them.
template <class Lines, int R>
void multiply_scattered(const AdapterLines& lines, const PanelProduct& product) {
    alignas(64) std::byte group[kChains * 64];
    Sums<R> sums;
    clear<R>(sums);
    for (std::int64_t line = 0, run; line < product.lines; line += run) {
        const std::int64_t first = product.first_line + line, left = product.lines - line;
        const float* x = product.x + line * Lines::kInputs;
        run = std::min(left, lines.together(first)) / kChains * kChains;
        if (run) {
            add_lines<Lines, R>(lines.at(first), run, x, product.x_stride, sums);
            continue;
        }
        run = std::min<std::int64_t>(kChains, left);
        std::memset(group, 0, sizeof(group));
        for (std::int64_t i = 0; i < run; ++i) std::memcpy(group + i * 64, lines.at(first + i), 64);
        add_lines<Lines, R>(group, kChains, x, product.x_stride, sums);
    }
    store_sums<R>(sums, product.sums, product.sums_stride);
}

template <class Lines, int... R>
void multiply_rows(const AdapterLines& lines, const PanelProduct& product, std::integer_sequence<int, R...>) {
    static constexpr std::array runs{&multiply_run<Lines, R + 1>...};
    static constexpr std::array scattered{&multiply_scattered<Lines, R + 1>...};
    const auto of_rows = static_cast<std::size_t>(product.rows - 1);
    if (product.panels) runs[of_rows](lines.at(product.first_line), product);
    else scattered[of_rows](lines, product);
}

// As many panels as are neighbours in memory are multiplied as one run.
template <class Lines>
void multiply(const AdapterLines& lines, const PanelProduct& product) {
    PanelProduct part = product;
    for (std::int64_t p = 0; p < product.panels; p += std::max<std::int64_t>(1, part.panels)) {
        part.first_line = product.first_line + p * product.lines;
        part.panels = std::min(product.panels - p, lines.together(part.first_line) / product.lines);
        if (product.lines % kChains) part.panels = 0;
        for (std::int64_t r = 0; r < product.rows; r += kChainRows) {
            part.rows = std::min<std::int64_t>(kChainRows, product.rows - r);
            part.x = product.x + r * product.x_stride;
            part.sums = product.sums + r * product.sums_stride + p * kPanel;
            multiply_rows<Lines>(lines, part, std::make_integer_sequence<int, kChainRows>());
        }
    }
}

}  // namespace kvarn::KVARN_ISA
