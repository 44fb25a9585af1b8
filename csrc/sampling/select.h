// Exact selection among weighted tokens in the order (weight descending, token id ascending), without sorting.
//
// A filter keeps a prefix of that order, and a draw ends somewhere in it. All three questions (where does top-k end,
// where top-p, which token is drawn) are: which is the first token at which the number, or the weight, of the tokens so
// far reaches a limit? Weights are positive floats, whose bits are ordered as they are, so bisection over the bits
// finds the weight of that token in at most 31 counts of what is heavier; tokens that weigh the same follow by id.
#pragma once

#include <bit>
#include <cstdint>

#include "simd/simd.h"

namespace kvarn::KVARN_ISA {

// Tokens with positive weights, in ascending order of ids; room for 15 more, so that whole vectors can be read.
struct Candidates {
    float* weights;
    std::int32_t* ids;
    std::int64_t count = 0;

    void append(F16 lane_weights, std::uint32_t lanes, std::int32_t first_id) {
        float values[16];
        store(values, lane_weights);
        for (; lanes; lanes &= lanes - 1) {
            const int lane = std::countr_zero(lanes);
            weights[count] = values[lane];
            ids[count++] = first_id + lane;
        }
    }
    // Fills the last vector with tokens that weigh nothing.
    void close() {
        for (std::int64_t i = count; i % 16; ++i) weights[i] = 0.0f;
    }
};

// Of some tokens: how many they are, and the sum of their weights.
struct Share {
    std::int64_t tokens = 0;
    double mass = 0.0;
};
inline Share operator+(Share a, Share b) { return {a.tokens + b.tokens, a.mass + b.mass}; }

// The tokens whose weights lie in [lightest, heaviest]; lightest > 0.
inline Share share_between(const Candidates& from, float lightest, float heaviest) {
    const F16 low = splat(lightest), high = splat(heaviest);
    WideSum mass = wide_zero();
    std::int64_t tokens = 0;
    for (std::int64_t i = 0; i < from.count; i += 16) {
        const F16 weights = load(from.weights + i);
        const F16 inside = where_less(high, weights, zero(), where_less(weights, low, zero(), weights));
        mass = add_wide(mass, inside);
        tokens += std::popcount(lanes_at_least(inside, low));
    }
    return {tokens, reduce_add(mass)};
}

// Copies the tokens whose weights lie in [lightest, heaviest] to `to`, which may be `from` itself.
inline Candidates narrow(const Candidates& from, float lightest, float heaviest, Candidates to) {
    const std::int64_t count = from.count;
    to.count = 0;
    for (std::int64_t i = 0; i < count; ++i) {
        if (from.weights[i] < lightest || from.weights[i] > heaviest) continue;
        to.weights[to.count] = from.weights[i];
        to.ids[to.count++] = from.ids[i];
    }
    to.close();
    return to;
}

struct Place {
    std::int32_t id = 0;
    Share through;  // this token and all before it
};

// The first token, in the order, with which `reached(share of it and all before it)` becomes true. It must be true for
// all candidates together. Their weights lie in [lightest, heaviest]; `scratch` has room for as many.
template <class Reached>
Place find_place(const Candidates& all, float lightest, float heaviest, const Candidates& scratch, Reached&& reached) {
    auto low = std::bit_cast<std::uint32_t>(lightest), high = std::bit_cast<std::uint32_t>(heaviest);
    Candidates left = all;
    std::int64_t inside = all.count;  // tokens in [low, high]
    Share before;                     // tokens heavier than `high`
    while (low < high) {
        const std::uint32_t middle = high - (high - low) / 2;
        const Share heavy = share_between(left, std::bit_cast<float>(middle), std::bit_cast<float>(high));
        if (reached(before + heavy)) {
            low = middle;
            inside = heavy.tokens;
        } else {
            high = middle - 1;
            inside -= heavy.tokens;
            before = before + heavy;
        }
        if (2 * inside <= left.count && left.count > 64) {
            left = narrow(left, std::bit_cast<float>(low), std::bit_cast<float>(high), scratch);
        }
    }
    const auto weight = std::bit_cast<float>(low);
    Place place{0, before};
    for (std::int64_t i = 0; i < left.count; ++i) {
        if (left.weights[i] != weight) continue;
        place = {left.ids[i], place.through + Share{1, weight}};
        if (reached(place.through)) break;
    }
    return place;
}

}  // namespace kvarn::KVARN_ISA
