#include <algorithm>
#include <cmath>
#include <limits>

#include "core/parallel.h"
#include "sampling/sampling.h"
#include "simd/simd.h"

namespace kvarn::KVARN_ISA {

namespace {

constexpr std::int64_t kSegmentTokens = 256 * 1024;  // one piece of work: waking a thread takes as long as half of it
constexpr std::int64_t kStretch = 256;              // tokens whose maximum is taken before looking for its place

struct Best {
    float value;
    std::int64_t token;
};

Best first_nan(const float* logits, std::int64_t first, std::int64_t last) {
    while (first < last && !std::isnan(logits[first])) ++first;
    return {logits[first], first};
}

// The largest of some logits; NaN where there is one.
float stretch_max(const float* logits, std::int64_t count) {
    F16 top = splat(-std::numeric_limits<float>::infinity());
    std::uint32_t numbers = 0xffff;  // lanes without NaN so far
    std::int64_t i = 0;
    for (; i + 16 <= count; i += 16) {
        const F16 x = load(logits + i);
        top = max(top, x);
        numbers &= lanes_at_least(x, x);
    }
    float value = numbers == 0xffff ? reduce_max(top) : std::numeric_limits<float>::quiet_NaN();
    for (; i < count; ++i) value = logits[i] > value || std::isnan(logits[i]) ? logits[i] : value;
    return value;
}

Best segment_best(const float* logits, std::int64_t first, std::int64_t last) {
    float best = -std::numeric_limits<float>::infinity();
    std::int64_t where = first;
    for (std::int64_t start = first; start < last; start += kStretch) {
        const float value = stretch_max(logits + start, std::min(kStretch, last - start));
        if (std::isnan(value)) return first_nan(logits, start, last);
        if (value > best) best = value, where = start;
    }
    return {best, std::find(logits + where, logits + last, best) - logits};
}

}  // namespace

void most_likely(const MostLikelyCall& call) {
    const std::int64_t segments = std::max<std::int64_t>(1, (call.vocab + kSegmentTokens - 1) / kSegmentTokens);
    Best* found = Carver(call.workspace->reserve(static_cast<std::size_t>(call.rows * segments) * sizeof(Best)))
                      .take<Best>(call.rows * segments);
    parallel_pieces(call.rows * segments, [&](std::int64_t piece) {
        const std::int64_t first = piece % segments * kSegmentTokens;
        found[piece] = segment_best(call.logits + piece / segments * call.stride, first,
                                    std::min(call.vocab, first + kSegmentTokens));
    });
    for (std::int64_t row = 0; row < call.rows; ++row) {
        const Best* best = found + row * segments;
        for (const Best* next = best + 1; next < found + (row + 1) * segments && !std::isnan(best->value); ++next)
            if (!(next->value <= best->value)) best = next;
        call.tokens[row] = best->token;
        call.values[row] = best->value;
    }
}

}  // namespace kvarn::KVARN_ISA
