// Integer dot products on AVX2, which multiplies bytes with 16-bit sums only.
//
// int8: a pair of products may reach 32258, so two pairs no longer fit into 16 bits. Bytes are therefore spread to
// 16-bit words and multiplied into 32-bit sums (vpmaddwd): two instructions for 16 products. Few rows spread each line
// as they read it; more rows spread a block of the panel once, into the first-level cache. On one Zen 3 core that gave
// 160 billion operations per second; unsigned weights times inputs with their sign (vpsignb, vpmaddubsw, vpmaddwd),
// which needs no spreading, gave 145.
//
// int4: a product of an unsigned nibble and a signed byte is at most 1905, so all eight pairs of 32 inputs add up in
// 16 bits (vpmaddubsw), which makes int4 the faster of the two. Bringing them to 32 bits multiplies them too (vpmaddwd).
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include <immintrin.h>

#include "linear/dot.h"

namespace kvarn::KVARN_ISA {

constexpr int kDotRows = 6;             // rows of a register tile: twelve sums, two weights, one input
constexpr int kPackedRows = 8;           // up to so many rows read the packed weights themselves,
constexpr int kPackedTile = 4;           // so many at a time: what spreads weights takes registers too
constexpr std::int64_t kAhead = 2048;    // bytes by which they are asked for before they are read
constexpr std::int64_t kSpread = 512;    // inputs of a panel that are spread at once

// Calls tile(rows, first) for tiles of even size; `rows` is a compile-time number, at most Most.
template <int Most, class Tile>
void in_row_tiles(std::int64_t count, Tile&& tile) {
    const std::int64_t tiles = (count + Most - 1) / Most;
    for (std::int64_t t = 0; t < tiles; ++t) {
        const std::int64_t first = count * t / tiles;
        switch (count * (t + 1) / tiles - first) {
            case 1: tile(std::integral_constant<int, 1>{}, first); break;
            case 2: tile(std::integral_constant<int, 2>{}, first); break;
            case 3: tile(std::integral_constant<int, 3>{}, first); break;
            case 4: tile(std::integral_constant<int, 4>{}, first); break;
            case 5: if constexpr (Most >= 5) tile(std::integral_constant<int, 5>{}, first); break;
            case 6: if constexpr (Most >= 6) tile(std::integral_constant<int, 6>{}, first); break;
        }
    }
}

inline __m256i load_256(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
inline void store_256(void* p, __m256i v) { _mm256_storeu_si256(static_cast<__m256i*>(p), v); }
inline __m256i splat_32(const void* p) {
    std::int32_t bits;
    std::memcpy(&bits, p, 4);
    return _mm256_set1_epi32(bits);
}

// The signed bytes at even, or odd, places, as 16-bit words: inputs 0 and 2, or 1 and 3, of each output's quad.
inline __m256i spread(__m256i bytes, int odd) {
    return _mm256_srai_epi16(odd ? bytes : _mm256_slli_epi16(bytes, 8), 8);
}

using Q8 = std::int16_t;

// (0, 1, 2, 3) becomes (0, 2, 1, 3): the pairs that `spread` makes of the weights.
inline void arrange8(const std::int8_t* q, std::int64_t count, Q8* out) {
    const __m128i order = _mm_setr_epi8(0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15);
    for (std::int64_t i = 0; i < count; i += 16) {
        const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(q + i));
        store_256(out + i, _mm256_cvtepi8_epi16(_mm_shuffle_epi8(bytes, order)));
    }
}

// Keeps a sum in its register, and the instructions of one row together: left to itself GCC multiplies for all rows
// first, and then has no registers left for the sums.
inline void settle(__m256i& sum) { asm volatile("" : "+x"(sum)); }

// Where a tile finds its weights: spread while they are read, or spread before.
struct PackedBytes {
    const std::int8_t* values;
    __m256i words(std::int64_t quad, int odd, int side) const {
        if (odd == 0 && side == 0) prefetch_once(values + quad * 64 + kAhead);
        return spread(load_256(values + (quad * 2 + side) * 32), odd);
    }
};
struct SpreadBytes {
    const std::int16_t* values;   // [quad][even, odd][16][2]
    const std::int8_t* next;      // packed weights to be spread after these: asked for meanwhile
    __m256i words(std::int64_t quad, int odd, int side) const {
        if (odd == 0 && side == 0) __builtin_prefetch(next + quad * 64);
        return load_256(values + (quad * 4 + odd * 2 + side) * 16);
    }
};

// Adds to dots [R][16] the products of `quads` quads of inputs.
template <int R, class Weights>
void tile8(const Q8* x, std::int64_t stride, Weights weights, std::int64_t quads, std::int32_t* dots) {
    __m256i sums[R][2];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
        for (int side = 0; side < 2; ++side) sums[r][side] = load_256(dots + r * kPanel + side * 8);
    for (std::int64_t quad = 0; quad < quads; ++quad) {
#pragma GCC unroll 2
        for (int odd = 0; odd < 2; ++odd) {
            const __m256i low = weights.words(quad, odd, 0), high = weights.words(quad, odd, 1);
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) {
                const __m256i pair = splat_32(x + r * stride + quad * kQuad + odd * 2);
                sums[r][0] = _mm256_add_epi32(sums[r][0], _mm256_madd_epi16(low, pair));
                sums[r][1] = _mm256_add_epi32(sums[r][1], _mm256_madd_epi16(high, pair));
                settle(sums[r][0]);
                settle(sums[r][1]);
            }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
        for (int side = 0; side < 2; ++side) store_256(dots + r * kPanel + side * 8, sums[r][side]);
}

inline void spread_bytes(const std::int8_t* values, std::int64_t quads, std::int16_t* out) {
    for (std::int64_t half = 0; half < 2 * quads; ++half) {
        const __m256i bytes = load_256(values + half * 32);
        std::int16_t* at = out + half / 2 * 64 + half % 2 * 16;
        store_256(at, spread(bytes, 0));
        store_256(at + 32, spread(bytes, 1));
    }
}

inline void dots8(const Rows8<Q8>& x, const Panel8& panel, std::int32_t* dots) {
    std::memset(dots, 0, static_cast<std::size_t>(x.count) * kPanel * sizeof(std::int32_t));
    alignas(64) std::int16_t words[kSpread * kPanel];
    for (std::int64_t first = 0; first < panel.in; first += kSpread) {
        const std::int64_t quads = std::min(kSpread, panel.in - first) / kQuad;
        const std::int8_t* packed = panel.values + first * kPanel;
        if (x.count <= kPackedRows) {
            in_row_tiles<kPackedTile>(x.count, [&]<int R>(std::integral_constant<int, R>, std::int64_t row) {
                tile8<R>(x.values + row * x.stride + first, x.stride, PackedBytes{packed}, quads, dots + row * kPanel);
            });
            continue;
        }
        spread_bytes(packed, quads, words);
        const SpreadBytes weights{words, packed + kSpread * kPanel};
        in_row_tiles<kDotRows>(x.count, [&]<int R>(std::integral_constant<int, R>, std::int64_t row) {
            tile8<R>(x.values + row * x.stride + first, x.stride, weights, quads, dots + row * kPanel);
        });
    }
}

// Minus the sums of the inputs that share a 16-bit lane, two words: inputs 0 and 1, and 2 and 3, of each quad. Times
// the zero point they are what the 16-bit sums begin with; that product may wrap, the finished sum fits again.
inline std::int32_t sum32(const std::int8_t* q) {
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), load_256(q));
    const __m128i four = _mm_add_epi16(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
    const __m128i two = _mm_add_epi16(four, _mm_shuffle_epi32(four, 0x4e));
    const __m128i one = _mm_add_epi16(two, _mm_shuffle_epi32(two, 0xb1));
    return _mm_cvtsi128_si32(_mm_sub_epi16(_mm_setzero_si128(), one));
}

inline __m256i low_nibbles(__m256i bytes) { return _mm256_and_si256(bytes, _mm256_set1_epi8(15)); }
inline __m256i high_nibbles(__m256i bytes) { return low_nibbles(_mm256_srli_epi16(bytes, 4)); }

// Quads of inputs of one panel; `part` counts 32 inputs from the first that `values` holds.
struct PackedNibbles {
    const std::uint8_t* values;
    __m256i bytes(std::int64_t part, int quad, int side) const {
        const std::uint8_t* line = values + part * (kSubScaled * kPanel / 2) + quad / 2 * 64;
        if (quad % 2 == 0 && side == 0) __builtin_prefetch(line + kAhead);
        const __m256i both = load_256(line + side * 32);
        return quad % 2 ? high_nibbles(both) : low_nibbles(both);
    }
};
struct SpreadNibbles {
    const std::uint8_t* values;   // [quad][16][4]
    const std::uint8_t* next;     // packed weights to be spread after these: asked for meanwhile
    __m256i bytes(std::int64_t part, int quad, int side) const {
        if (quad % 2 == 0 && side == 0) __builtin_prefetch(next + part * (kSubScaled * kPanel / 2) + quad / 2 * 64);
        return load_256(values + part * (kSubScaled * kPanel) + quad * 64 + side * 32);
    }
};

// Sixteen bytes as 16-bit words, each twice.
struct WordsTwice {
    __m256i side[2];
};
inline __m256i twice(__m256i ints) {
    return _mm256_or_si256(_mm256_and_si256(ints, _mm256_set1_epi32(0xffff)), _mm256_slli_epi32(ints, 16));
}
inline WordsTwice unsigned_twice(const std::uint8_t* p) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return {twice(_mm256_cvtepu8_epi32(bytes)), twice(_mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8)))};
}
inline WordsTwice signed_twice(const std::int8_t* p) {
    const __m256i words = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    const __m256i quarters = _mm256_permute4x64_epi64(words, 0xd8);    // words 0-3, 8-11, 4-7, 12-15
    return {_mm256_unpacklo_epi16(quarters, quarters), _mm256_unpackhi_epi16(quarters, quarters)};
}
inline WordsTwice splat_twice(std::int16_t x) { return {_mm256_set1_epi16(x), _mm256_set1_epi16(x)}; }

// sums[r] = products of 32 inputs in 16-bit words: `part` from the first input, `from` from the first of `weights`.
template <int R, class Weights>
[[gnu::always_inline]] inline void dots32(const Rows4& x, std::int64_t row, std::int64_t part, std::int64_t parts,
                                          const Weights& weights, std::int64_t from, const WordsTwice& zero,
                                          __m256i (&sums)[R][2]) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
        const __m256i minus = splat_32(x.sums + (row + r) * parts + part);
#pragma GCC unroll 2
        for (int side = 0; side < 2; ++side) sums[r][side] = _mm256_mullo_epi16(zero.side[side], minus);
    }
    const std::int8_t* q = x.values + row * x.stride + part * kSubScaled;
#pragma GCC unroll 8
    for (int i = 0; i < kSubScaled / kQuad; ++i) {
        const __m256i low = weights.bytes(from, i, 0), high = weights.bytes(from, i, 1);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            const __m256i four = splat_32(q + r * x.stride + i * kQuad);
            sums[r][0] = _mm256_add_epi16(sums[r][0], _mm256_maddubs_epi16(low, four));
            sums[r][1] = _mm256_add_epi16(sums[r][1], _mm256_maddubs_epi16(high, four));
            settle(sums[r][0]);
            settle(sums[r][1]);
        }
    }
}

// Adds `inputs` inputs from `first` on, whole blocks of them, to out [R][16]; `weights` begins at the first of them.
template <int R, std::int64_t kBlockParts, class Weights>
void tile4(const Rows4& x, std::int64_t row, const Panel4& panel, const Weights& weights, std::int64_t first,
           std::int64_t inputs, float* out) {
    const std::int64_t parts = panel.in / kSubScaled, blocks = panel.blocks();
    const std::int64_t first_part = first / kSubScaled, last_part = first_part + inputs / kSubScaled;
    alignas(32) std::int32_t totals[R * kPanel];    // of the parts of a block so far
#pragma GCC unroll 16
    for (int i = 0; i < 2 * R; ++i) store_256(totals + i * 8, _mm256_setzero_si256());
    for (std::int64_t part = first_part; part < last_part; ++part) {
        const std::int64_t group = part * kSubScaled / panel.group;
        const WordsTwice zero = panel.zeros ? unsigned_twice(panel.zeros + group * kPanel) : splat_twice(8);
        __m256i sums[R][2];
        dots32<R>(x, row, part, parts, weights, part - first_part, zero, sums);
        const WordsTwice sub_scale =
            panel.sub_scales ? signed_twice(panel.sub_scales + part * kPanel) : splat_twice(1);
        const bool begins = part % kBlockParts == 0;
        const bool ends = part % kBlockParts == kBlockParts - 1 || part + 1 == last_part;
        const auto* scales = reinterpret_cast<const __m128i*>(panel.scales + group * kPanel);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
            for (int side = 0; side < 2; ++side) {
                __m256i total = _mm256_madd_epi16(sums[r][side], sub_scale.side[side]);
                std::int32_t* of_block = totals + r * kPanel + side * 8;
                if (!begins) total = _mm256_add_epi32(total, load_256(of_block));
                if (ends) {
                    float* at = out + r * kPanel + side * 8;
                    const __m256 scale = _mm256_set1_ps(x.scales[(row + r) * blocks + part / kBlockParts]);
                    const __m256 of_both = _mm256_mul_ps(scale, _mm256_cvtph_ps(_mm_loadu_si128(scales + side)));
                    _mm256_storeu_ps(at, _mm256_fmadd_ps(_mm256_cvtepi32_ps(total), of_both, _mm256_loadu_ps(at)));
                } else {
                    store_256(of_block, total);
                }
            }
        }
    }
}

inline void spread_nibbles(const std::uint8_t* values, std::int64_t quads, std::uint8_t* out) {
    for (std::int64_t half = 0; half < quads; ++half) {
        const __m256i both = load_256(values + half * 32);
        std::uint8_t* at = out + half / 2 * 128 + half % 2 * 32;
        store_256(at, low_nibbles(both));
        store_256(at + 64, high_nibbles(both));
    }
}

template <std::int64_t kBlockParts>
void blocks_of_dots4(const Rows4& x, const Panel4& panel, float* sums) {
    std::memset(sums, 0, static_cast<std::size_t>(x.count) * kPanel * sizeof(float));
    alignas(64) std::uint8_t bytes[kSpread * kPanel];
    for (std::int64_t first = 0; first < panel.in; first += kSpread) {
        const std::int64_t inputs = std::min(kSpread, panel.in - first);
        const std::uint8_t* packed = panel.values + first * kPanel / 2;
        if (x.count <= kPackedRows) {
            in_row_tiles<kPackedTile>(x.count, [&]<int R>(std::integral_constant<int, R>, std::int64_t row) {
                tile4<R, kBlockParts>(x, row, panel, PackedNibbles{packed}, first, inputs, sums + row * kPanel);
            });
            continue;
        }
        spread_nibbles(packed, inputs / kQuad, bytes);
        const SpreadNibbles weights{bytes, packed + kSpread * kPanel / 2};
        in_row_tiles<kDotRows>(x.count, [&]<int R>(std::integral_constant<int, R>, std::int64_t row) {
            tile4<R, kBlockParts>(x, row, panel, weights, first, inputs, sums + row * kPanel);
        });
    }
}

inline void dots4(const Rows4& x, const Panel4& panel, float* sums) {
    if (panel.block == kScaleInputs) blocks_of_dots4<kScaleInputs / kSubScaled>(x, panel, sums);
    else blocks_of_dots4<1>(x, panel, sums);
}

}  // namespace kvarn::KVARN_ISA
