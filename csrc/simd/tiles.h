// AMX tiles: eight registers of 16 rows x 64 bytes, of which a configuration makes any part usable.
//
//   tile_dot_bf16<C, A, B>()   C[m][n] += A[m][0..31] . B[..][n], numbers in pairs: B is [16][16 outputs][2]
//   tile_dot_int8<C, A, B>()   C[m][n] += A[m][0..63] . B[..][n], numbers in fours: B is [16][16 outputs][4]
//
// Order and rounding of a bf16 product are fixed by the architecture, the same for any number of rows: even inputs in
// one chain of fused multiply-adds, odd ones in a second, both from zero in ascending order; their sum; that added to
// C. Numbers below 2^-126 count as zero, given or found.
//
// Tile state belongs to a thread: TileScope configures it, and releases it at its end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "simd/features.h"

namespace kvarn::KVARN_ISA {

// The memory form of a configuration (palette 1).
struct alignas(64) TileShapes {
    std::uint8_t palette = 1;
    std::uint8_t start_row = 0;
    std::uint8_t reserved[14] = {};
    std::uint16_t row_bytes[16] = {};
    std::uint8_t rows[16] = {};

    void set(int tile, std::int64_t tile_rows, std::int64_t bytes = 64) {
        row_bytes[tile] = static_cast<std::uint16_t>(bytes);
        rows[tile] = static_cast<std::uint8_t>(tile_rows);
    }
};
static_assert(sizeof(TileShapes) == 64);

}  // namespace kvarn::KVARN_ISA

#if KVARN_HAS_ZMM
#include "simd/tiles_amx.h"
#else
#include "simd/tiles_emulated.h"
#endif

namespace kvarn::KVARN_ISA {

class TileScope {
  public:
    explicit TileScope(const TileShapes& shapes) { configure_tiles(shapes); }
    TileScope(const TileScope&) = delete;
    TileScope& operator=(const TileScope&) = delete;
    ~TileScope() { release_tiles(); }
};

// Calls body(0), body(1) ... body(N - 1) with constants, which is what instructions on tiles need.
template <int N, class Body>
void each(Body&& body) {
    [&]<int... i>(std::integer_sequence<int, i...>) {
        (body(std::integral_constant<int, i>()), ...);
    }(std::make_integer_sequence<int, N>());
}

}  // namespace kvarn::KVARN_ISA
