// Attention of a few rows of queries to one segment, and how the results of segments are joined.
//
// A result is a row of P + 16 floats: largest score, sum of weights, fourteen unused, then P weighted values, where a
// weight is e^(score - largest score). Joining in ascending order follows the online softmax (Milakov and
// Gimelshein 2018).
#pragma once

#include <algorithm>
#include <cmath>

#include "attention/products.h"

namespace kvarn::KVARN_ISA {

constexpr std::int64_t kResultValues = 16;    // where in a result the values begin

inline std::int64_t result_stride(const HeadShape& shape) { return kResultValues + shape.padded_dim(); }

// Positions of a segment that one row sees: first to last, one past; none where last <= first.
struct Visible {
    int first, last;
};

inline F16 positions_from(int first) {
    alignas(64) static constexpr float kCount[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return add(load(kCount), splat(static_cast<float>(first)));
}

// Lanes of `inside` at positions the row sees, elsewhere those of `outside`. What stands outside may be NaN.
inline F16 where_visible(const Visible& visible, int position, F16 inside, F16 outside) {
    const F16 at = positions_from(position);
    const F16 before_last = where_less(at, splat(static_cast<float>(visible.last)), inside, outside);
    return where_less(at, splat(static_cast<float>(visible.first)), outside, before_last);
}

inline bool whole_block(const Visible& visible, int position) {
    return visible.first <= position && position + kBlock <= visible.last;
}

// Turns one row's scores into weights, 0 where it sees nothing; result[0] and [1] are the largest score and the sum.
inline void soften(int first_block, int last_block, const Visible& visible, float softcap, float* scores,
                   float* result) {
    const F16 hidden = splat(-INFINITY);
    const int first = first_block * kBlock, last = last_block * kBlock;
    F16 peaks = hidden;
    for (int p = first; p < last; p += kBlock) {
        F16 score = load(scores + p);
        if (softcap != 0.0f) score = mul(tanh(div(score, splat(softcap))), splat(softcap));
        if (!whole_block(visible, p)) score = where_visible(visible, p, score, hidden);
        peaks = max(peaks, score);
        store(scores + p, score);
    }
    const float peak = reduce_max(peaks);
    F16 sums = zero();
    for (int p = first; p < last; p += kBlock) {
        const F16 weight = exp(sub(load(scores + p), splat(peak)));
        sums = add(sums, weight);
        store(scores + p, weight);
    }
    result[0] = peak;
    result[1] = reduce_add(sums);
}

// Multiplies weights with the scale of a block's values, of which those not yet written may be NaN.
inline void scale_weights(const float* scales, int block, const Visible& visible, float* weights) {
    const int position = block * static_cast<int>(kBlock);
    const F16 scaled = mul(load(weights + position), load(scales));
    store(weights + position, whole_block(visible, position) ? scaled : where_visible(visible, position, scaled, zero()));
}

// Some rows of queries of one segment. Row r sees visible[r] (never empty); its result goes to results[r].
template <int kRows, class Query>
struct AttendRows {
    int rows = 0;
    std::array<const Query*, kRows> queries;
    std::array<Visible, kRows> visible;
    std::array<float*, kRows> results;

    // Positions that some row sees lie between these.
    Visible seen() const {
        Visible all{kSegment, 0};
        for (int r = 0; r < rows; ++r) {
            all.first = std::min(all.first, visible[r].first);
            all.last = std::max(all.last, visible[r].last);
        }
        return all;
    }
};

// Attention of rows to a segment in vector registers, in float32.
template <KvType type>
class VectorAttention {
  public:
    using Query = float;
    static constexpr int kRows = kMaxRows;

    static std::int64_t scratch_floats(const HeadShape&) { return kRows * kScoreStride; }

    // `scratch` has so many floats, on a 64-byte boundary.
    VectorAttention(const HeadShape& shape, float softcap, float* scratch)
        : shape_(shape), softcap_(softcap), scores_(scratch) {}

    // Takes the blocks of a segment, and those that are read next.
    void begin(const SegmentBlocks& blocks, const SegmentBlocks& next, int) {
        blocks_ = blocks;
        after_ = next.count ? next.keys[0] : blocks.values[blocks.count - 1];
    }

    void attend(const AttendRows<kRows, Query>& rows) {
        const Visible seen = rows.seen();
        const int first = seen.first / static_cast<int>(kBlock);
        const int last = (seen.last + static_cast<int>(kBlock) - 1) / static_cast<int>(kBlock);
        SegmentRows part{rows.rows, first, last, seen.last, rows.queries, {}, scores_, after_};
        for (int r = 0; r < rows.rows; ++r) {
            part.sums[r] = rows.results[r] + kResultValues;
            std::fill_n(part.sums[r], shape_.padded_dim(), 0.0f);
        }
        score<type>(part, blocks_, shape_);
        for (int r = 0; r < rows.rows; ++r) {
            float* row = scores_ + r * kScoreStride;
            soften(first, last, rows.visible[r], softcap_, row, rows.results[r]);
            if constexpr (type == KvType::int8)
                for (int b = first; b < last; ++b) scale_weights(scales_of(blocks_.values[b]), b, rows.visible[r], row);
        }
        weigh<type>(part, blocks_, shape_);
        after_ = blocks_.values[last - 1];    // asked for once: later rows find it near
    }

  private:
    const HeadShape shape_;
    const float softcap_;
    float* const scores_;
    SegmentBlocks blocks_;
    const std::byte* after_ = nullptr;    // the block that is read after those of the segment
};

inline float exp_of(float x) {
    alignas(64) float lanes[16];
    store(lanes, exp(splat(x)));
    return lanes[0];
}

// Joins the result of a later segment to what the earlier ones gave.
inline void fold(float* state, const float* segment, std::int64_t padded) {
    const float peak = std::max(state[0], segment[0]);
    const float keep = exp_of(state[0] - peak), take = exp_of(segment[0] - peak);
    state[0] = peak;
    state[1] = state[1] * keep + segment[1] * take;
    float* sums = state + kResultValues;
    const float* more = segment + kResultValues;
    for (std::int64_t d = 0; d < padded; d += 16)
        store(sums + d, fma(load(more + d), splat(take), mul(load(sums + d), splat(keep))));
}

// `sink`: a score that takes its share of the weights and has no value; null: there is none.
inline void finish(const float* state, const float* sink, std::int64_t dim, float* out) {
    const F16 factor = splat(1.0f / (sink ? state[1] + exp_of(*sink - state[0]) : state[1]));
    for (std::int64_t d = 0; d < dim; d += 16)
        store_first(out + d, mul(load(state + kResultValues + d), factor),
                    static_cast<int>(std::min<std::int64_t>(16, dim - d)));
}

}  // namespace kvarn::KVARN_ISA
