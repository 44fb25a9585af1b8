#include "roofline/ceilings.h"

#include "core/parallel.h"
#include "simd/simd.h"

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
#if defined(KVARN_ISA_avx2)
constexpr int kChains = 5;
#else
constexpr int kChains = 12;
#endif

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
    return {2.0 * 16 * kChains * static_cast<double>(rounds) * static_cast<double>(pieces), digest};
}

}  // namespace kvarn::KVARN_ISA
