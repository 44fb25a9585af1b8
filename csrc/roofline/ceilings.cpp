#include "roofline/ceilings.h"

#include "core/parallel.h"
#include "simd/features.h"
#include "simd/simd.h"
#if KVARN_HAS_TILES
#include "simd/tiles.h"
#endif

namespace kvarn::KVARN_ISA {

namespace {

constexpr std::int64_t kPieceBytes = 1 << 20;
constexpr std::int64_t kAheadBytes = 4096;  // how far ahead the next lines are asked for

std::uint64_t read_piece(const std::byte* p, std::int64_t bytes) {
    const auto* words = reinterpret_cast<const std::uint64_t*>(p);
    std::uint64_t sums[16] = {};
    for (std::int64_t i = 0; i + 16 <= bytes / 8; i += 16) {
        __builtin_prefetch(reinterpret_cast<const std::byte*>(words + i) + kAheadBytes);
        __builtin_prefetch(reinterpret_cast<const std::byte*>(words + i) + kAheadBytes + 64);
        for (int lane = 0; lane < 16; ++lane) sums[lane] ^= words[i + lane];
    }
    std::uint64_t digest = 0;
    for (const std::uint64_t sum : sums) digest ^= sum;
    return digest;
}

// Independent chains, as many as hide the latency of a multiply-add and fit the registers.
constexpr int kChains = KVARN_WIDE && KVARN_HAS_ZMM ? 12 : 5;

#if KVARN_HAS_TILES
// Four sums of tile products at a time, as the kernels keep them. Returns the first byte of the first sum.
template <class FourProducts>
std::uint64_t multiply_tiles(std::int64_t rounds, FourProducts&& four_products) {
    TileShapes shapes;
    for (int tile = 0; tile < 8; ++tile) shapes.set(tile, 16);
    const TileScope scope(shapes);
    alignas(64) std::uint8_t lines[1024] = {};
    tile_zero<0>();
    tile_zero<1>();
    tile_zero<2>();
    tile_zero<3>();
    tile_load<4>(lines, 64);
    tile_load<5>(lines, 64);
    tile_load<6>(lines, 64);
    tile_load<7>(lines, 64);
    for (std::int64_t round = 0; round < rounds; ++round) four_products();
    tile_store<0>(lines, 64);
    return lines[0];
}
constexpr double kTileOutputs = 4 * 16 * 16;
constexpr double kFloatOperations = 2.0 * kTileOutputs * 32;
float multiply_piece(std::int64_t rounds) {
    return static_cast<float>(multiply_tiles(rounds, [] {
        tile_dot_bf16<0, 4, 6>();
        tile_dot_bf16<1, 4, 7>();
        tile_dot_bf16<2, 5, 6>();
        tile_dot_bf16<3, 5, 7>();
    }));
}
#else
constexpr double kFloatOperations = 2.0 * 16 * kChains;
float multiply_piece(std::int64_t rounds) {
    F16 chains[kChains];
    for (int c = 0; c < kChains; ++c) chains[c] = splat(0.5f + static_cast<float>(c));
    const F16 factor = splat(0.999f), term = splat(1e-3f);
    for (std::int64_t round = 0; round < rounds; ++round)
        for (int c = 0; c < kChains; ++c) chains[c] = fma(chains[c], factor, term);
    F16 sum = chains[0];
    for (int c = 1; c < kChains; ++c) sum = add(sum, chains[c]);
    return reduce_add(sum);
}
#endif

// Products of bytes summed in 32 bits, by the instructions that the integer kernels use for many rows.
#if KVARN_HAS_TILES
constexpr double kByteOperations = 2.0 * kTileOutputs * 64;
std::uint64_t multiply_bytes_piece(std::int64_t rounds) {
    return multiply_tiles(rounds, [] {
        tile_dot_int8<0, 4, 6>();
        tile_dot_int8<1, 4, 7>();
        tile_dot_int8<2, 5, 6>();
        tile_dot_int8<3, 5, 7>();
    });
}
#elif KVARN_HAS_ZMM
constexpr double kByteOperations = 2.0 * 64 * kChains;
std::uint64_t multiply_bytes_piece(std::int64_t rounds) {
    __m512i chains[kChains] = {};
    const __m512i ones = _mm512_set1_epi8(1);
    for (std::int64_t round = 0; round < rounds; ++round)
        for (int c = 0; c < kChains; ++c) chains[c] = _mm512_dpbusd_epi32(chains[c], ones, ones);
    for (int c = 1; c < kChains; ++c) chains[0] = _mm512_add_epi32(chains[0], chains[c]);
    return static_cast<std::uint64_t>(_mm512_reduce_add_epi32(chains[0]));
}
#elif KVARN_HAS_YMM
constexpr double kByteOperations = 2.0 * 16 * 2 * kChains;
std::uint64_t multiply_bytes_piece(std::int64_t rounds) {
    __m256i chains[2 * kChains] = {};
    __m256i factor = _mm256_set1_epi16(1);
    for (std::int64_t round = 0; round < rounds; ++round)
        for (int c = 0; c < 2 * kChains; ++c) {
            asm("" : "+x"(factor));  // or the compiler would multiply once and add often
            chains[c] = _mm256_add_epi32(chains[c], _mm256_madd_epi16(factor, factor));
        }
    for (int c = 1; c < 2 * kChains; ++c) chains[0] = _mm256_add_epi32(chains[0], chains[c]);
    return static_cast<std::uint64_t>(_mm256_extract_epi32(chains[0], 0));
}
#else
constexpr double kByteOperations = 2.0 * 16 * kChains;
std::uint64_t multiply_bytes_piece(std::int64_t rounds) {
    std::int32_t chains[16 * kChains] = {}, factor = 1;
    for (std::int64_t round = 0; round < rounds; ++round)
        for (std::int32_t& chain : chains) {
            asm("" : "+r"(factor));  // or the compiler would multiply once and add often
            chain += factor * factor;
        }
    std::uint64_t sum = 0;
    for (const std::int32_t chain : chains) sum += static_cast<std::uint64_t>(chain);
    return sum;
}
#endif

}  // namespace

// Reads `bytes` bytes once, in pieces, on all threads.
Work read_all(const std::byte* memory, std::int64_t bytes) {
    const std::int64_t pieces = bytes / kPieceBytes;
    std::uint64_t digest = 0;
    parallel_pieces(pieces, [&](std::int64_t piece) {
        const std::uint64_t own = read_piece(memory + piece * kPieceBytes, kPieceBytes);
        __atomic_fetch_xor(&digest, own, __ATOMIC_RELAXED);
    });
    return {static_cast<double>(pieces * kPieceBytes), digest};
}

// Multiply-adds of floats from registers, `pieces` pieces of `rounds` rounds, on all threads.
Work multiply_floats(std::int64_t pieces, std::int64_t rounds) {
    std::uint64_t digest = 0;
    parallel_pieces(pieces, [&](std::int64_t) {
        const auto own = static_cast<std::uint64_t>(multiply_piece(rounds));
        __atomic_fetch_add(&digest, own, __ATOMIC_RELAXED);
    });
    return {kFloatOperations * static_cast<double>(rounds) * static_cast<double>(pieces), digest};
}

// Multiply-adds of bytes from registers, `pieces` pieces of `rounds` rounds, on all threads.
Work multiply_bytes(std::int64_t pieces, std::int64_t rounds) {
    std::uint64_t digest = 0;
    parallel_pieces(pieces, [&](std::int64_t) {
        __atomic_fetch_add(&digest, multiply_bytes_piece(rounds), __ATOMIC_RELAXED);
    });
    return {kByteOperations * static_cast<double>(rounds) * static_cast<double>(pieces), digest};
}

}  // namespace kvarn::KVARN_ISA
