// Tiles in the processor. As inline assembly: the intrinsics of GCC 12 do not say that they read or write memory, and
// so stores to a configuration or to a tile's source are reordered with them, or dropped. Volatile assembly keeps its
// order, which is all that products need.
#pragma once

#include <cstddef>

#include "simd/tiles.h"

namespace kvarn::KVARN_ISA {

inline void configure_tiles(const TileShapes& shapes) { asm volatile("ldtilecfg %0" ::"m"(shapes) : "memory"); }
inline void release_tiles() { asm volatile("tilerelease" ::: "memory"); }

template <int T>
void tile_zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(T));
}
// Rows of 64 bytes, `stride` bytes apart, to tile T.
template <int T>
void tile_load(const void* rows, std::size_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(rows), "r"(stride), "i"(T) : "memory");
}
template <int T>
void tile_store(void* rows, std::size_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(rows), "r"(stride), "i"(T) : "memory");
}
template <int C, int A, int B>
void tile_dot_bf16() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
}
template <int C, int A, int B>
void tile_dot_int8() {
    asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
}

}  // namespace kvarn::KVARN_ISA
