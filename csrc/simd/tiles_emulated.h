// Tiles in memory, done in software bit for bit as Intel's manual defines them (Software Developer's Manual, volume 2,
// LDTILECFG, TILELOADD, TILESTORED, TILEZERO, TDPBF16PS, TDPBSSD). What the processor refuses is an illegal instruction
// here too.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/tile_counts.h"
#include "simd/flushed.h"
#include "simd/simd.h"
#include "simd/tiles.h"

namespace kvarn::KVARN_ISA {

struct EmulatedTiles {
    TileShapes shapes;
    bool configured = false;
    alignas(64) std::uint8_t data[8][16][64];
};
inline thread_local EmulatedTiles emulated_tiles;

inline void refuse_unless(bool legal) {
    if (!legal) __builtin_trap();
}

inline void configure_tiles(const TileShapes& shapes) {
    refuse_unless(shapes.palette == 1 && shapes.start_row == 0);
    for (int t = 0; t < 16; ++t) {
        refuse_unless(shapes.rows[t] <= (t < 8 ? 16 : 0) && shapes.row_bytes[t] <= (t < 8 ? 64 : 0));
        refuse_unless((shapes.rows[t] == 0) == (shapes.row_bytes[t] == 0));
    }
    emulated_tiles.shapes = shapes;
    emulated_tiles.configured = true;
    if (tile_counter) ++tile_counter->configurations;
    std::memset(emulated_tiles.data, 0, sizeof emulated_tiles.data);
}
inline void release_tiles() { emulated_tiles.configured = false; }

inline int rows_of(int tile) {
    refuse_unless(emulated_tiles.configured && emulated_tiles.shapes.rows[tile] > 0);
    return emulated_tiles.shapes.rows[tile];
}
inline int dwords_of(int tile) { return emulated_tiles.shapes.row_bytes[tile] / 4; }

template <int T>
void tile_zero() {
    rows_of(T);
    std::memset(emulated_tiles.data[T], 0, sizeof emulated_tiles.data[T]);
}
// Rows of 64 bytes, `stride` bytes apart, to tile T.
template <int T>
void tile_load(const void* rows, std::size_t stride) {
    const int count = rows_of(T);
    if (tile_counter) tile_counter->load(rows, stride, count);
    std::memset(emulated_tiles.data[T], 0, sizeof emulated_tiles.data[T]);
    for (int r = 0; r < count; ++r)
        std::memcpy(emulated_tiles.data[T][r], static_cast<const std::uint8_t*>(rows) + r * stride, 4 * dwords_of(T));
}
template <int T>
void tile_store(void* rows, std::size_t stride) {
    if (tile_counter) tile_counter->store(rows, stride, rows_of(T));
    for (int r = 0; r < rows_of(T); ++r)
        std::memcpy(static_cast<std::uint8_t*>(rows) + r * stride, emulated_tiles.data[T][r], 4 * dwords_of(T));
}

// Refuses shapes that do not fit together, and clears what C holds outside its shape. The depth of the product.
template <int C, int A, int B>
int begin_dot() {
    static_assert(C != A && C != B && A != B);
    const int rows = rows_of(C), depth = rows_of(B), columns = dwords_of(C);
    refuse_unless(rows_of(A) == rows && dwords_of(A) == depth && dwords_of(B) == columns);
    if (tile_counter) ++tile_counter->products[static_cast<std::size_t>(rows)];
    for (int m = 0; m < 16; ++m) {
        const int kept = m < rows ? 4 * columns : 0;
        std::memset(emulated_tiles.data[C][m] + kept, 0, 64 - kept);
    }
    return depth;
}

template <int C, int A, int B>
void tile_dot_bf16() {
    const int depth = begin_dot<C, A, B>();
    const auto& tiles = emulated_tiles.data;
    const Flushed flushed;
    for (int m = 0; m < rows_of(C); ++m) {
        F16 even = zero(), odd = zero();
        for (int k = 0; k < depth; ++k) {
            std::uint32_t pair;
            std::memcpy(&pair, tiles[A][m] + 4 * k, 4);
            even = fma(splat(std::bit_cast<float>(pair << 16)), bf16_even(tiles[B][k]), even);
            odd = fma(splat(std::bit_cast<float>(pair & 0xffff0000u)), bf16_odd(tiles[B][k]), odd);
        }
        auto* sums = reinterpret_cast<float*>(emulated_tiles.data[C][m]);
        store_first(sums, add(load(sums), add(even, odd)), dwords_of(C));
    }
}

template <int C, int A, int B>
void tile_dot_int8() {
    const int depth = begin_dot<C, A, B>();
    const auto& tiles = emulated_tiles.data;
    for (int m = 0; m < rows_of(C); ++m) {
        std::uint32_t sums[16];  // overflow wraps around
        std::memcpy(sums, tiles[C][m], 64);
        for (int k = 0; k < depth; ++k)
            for (int n = 0; n < dwords_of(C); ++n)
                for (int i = 0; i < 4; ++i) {
                    const int a = static_cast<std::int8_t>(tiles[A][m][4 * k + i]);
                    sums[n] += static_cast<std::uint32_t>(a * static_cast<std::int8_t>(tiles[B][k][4 * n + i]));
                }
        std::memcpy(emulated_tiles.data[C][m], sums, 64);
    }
}

}  // namespace kvarn::KVARN_ISA
