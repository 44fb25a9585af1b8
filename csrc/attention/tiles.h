// Attention of up to 32 rows of queries to one segment, by AMX tiles; of work items of a few rows by vector registers.
//
// Queries and weights are rounded to bfloat16. Keys and values are bfloat16; int8 ones are widened to it, which is
// exact, and their scales multiply the scores and the weights.
//
// Order of sums, whatever the number of rows: a score is one chain of tile products over the numbers of a head, 32 at a
// time, a weighted value one over the blocks of a segment. A position that a row does not see has the weight zero,
// which changes no bit of its sums.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>

#include "attention/few_rows.h"
#include "attention/segment.h"
#include "core/workspace.h"
#include "simd/features.h"

#if KVARN_HAS_TILES

#include "simd/flushed.h"
#include "simd/tiles.h"

namespace kvarn::KVARN_ISA {

constexpr int kTileRows = 16;
constexpr std::int64_t kStepBytes = kStepDims * kBlock * 2;
// Rows of scores and of weights begin in different cache sets.
constexpr std::int64_t kTileScoreStride = kSegment + kBlock;
constexpr std::int64_t kWeightStride = kSegment + 2 * kBlock;
constexpr int kBlocksAhead = 8;    // whose lines are called into the second cache; fewer where a segment has fewer

// Tiles 0 to 3 hold sums (of the second sixteen rows: 2 and 3), 4 and 5 rows, the rest take keys or values in turn.
constexpr int row_tile(int r) { return 4 + r; }
constexpr int score_tile(int r, int n) { return 2 * r + n; }
template <int R>
constexpr int other_tile(int n) { return 4 + R + n % (4 - R); }

// For `rows` rows and products of `pairs` pairs of numbers.
inline TileShapes attention_shapes(int rows, int pairs) {
    TileShapes shapes;
    const int first = std::min(rows, kTileRows), second = rows - first;
    if (second == 0) {
        for (int n = 0; n < 4; ++n) shapes.set(n, first);
        shapes.set(row_tile(0), first, 4 * pairs);
    } else {
        for (int n = 0; n < 2; ++n) {
            shapes.set(score_tile(0, n), first);
            shapes.set(score_tile(1, n), second);
        }
        shapes.set(row_tile(0), first, 4 * pairs);
        shapes.set(row_tile(1), second, 4 * pairs);
    }
    for (int tile = second ? 6 : 5; tile < 8; ++tile) shapes.set(tile, pairs);
    return shapes;
}

template <KvType type>
class TileAttention {
  public:
    using Query = std::uint16_t;
    static constexpr int kRows = 2 * kTileRows;

    static std::int64_t scratch_floats(const HeadShape& shape) {
        Carver count;
        TileAttention(shape, 0.0f, count);
        return static_cast<std::int64_t>(count.used() / sizeof(float));
    }

    TileAttention(const HeadShape& shape, float softcap, float* scratch)
        : TileAttention(shape, softcap, Carver(reinterpret_cast<std::byte*>(scratch))) {}

    // Takes the blocks of a segment that an item of `rows` rows reads, and those that are read next.
    void begin(const SegmentBlocks& blocks, const SegmentBlocks& next, int rows) {
        blocks_ = blocks;
        next_ = next;
        few_ = rows <= kFewRows;
        prefetches_ = true;
        if constexpr (type == KvType::int8)
            for (int b = 0; b < blocks.count; ++b) {
                key_scales_[b] = scales_of(blocks.keys[b]);
                value_scales_[b] = scales_of(blocks.values[b]);
            }
        if (few_ || !copies_keys()) return;
        const int distance = std::min(kBlocksAhead, blocks.count);
        for (int b = 0; b < blocks.count; ++b) {
            const int ahead = b + distance;
            if (ahead < blocks.count) prefetch_block(blocks.keys[ahead]);
            else if (type == KvType::int8) prefetch_block(blocks.values[ahead - blocks.count]);
            blocks_.keys[b] = copy_keys(blocks.keys[b], keys_ + b * steps() * kStepBytes);
        }
        if constexpr (type != KvType::int8) return;
        for (int b = 0; b < blocks.count; ++b) {
            const int ahead = b + distance;
            if (ahead < blocks.count) prefetch_block(blocks.values[ahead]);
            else if (ahead - blocks.count < next.count) prefetch_block(next.keys[ahead - blocks.count]);
            blocks_.values[b] = widen_values(blocks.values[b], values_ + b * value_bytes());
        }
    }

    void attend(const AttendRows<kRows, Query>& rows) {
        const Visible seen = rows.seen();
        first_ = seen.first / static_cast<int>(kBlock);
        last_ = (seen.last + static_cast<int>(kBlock) - 1) / static_cast<int>(kBlock);
        if (few_) attend_few(rows, seen.last);
        else attend_tiles(rows, seen.last);
        prefetches_ = false;
    }

  private:
    TileAttention(const HeadShape& shape, float softcap, Carver&& carver) : TileAttention(shape, softcap, carver) {}
    TileAttention(const HeadShape& shape, float softcap, Carver& carver)
        : shape_(shape), softcap_(softcap),
          queries_(carver.take<std::uint16_t>(kRows * steps() * kStepDims)),
          scores_(carver.take<float>(kRows * kTileScoreStride)),
          weights_(carver.take<std::uint16_t>(kRows * kWeightStride)),
          few_queries_(carver.take<float>(kFewRows * kMaxHeadDim)),
          results_(carver.take<float>(kRows * result_stride(shape))),
          last_values_(carver.take<std::byte>(value_bytes())),
          keys_(carver.take<std::byte>(copies_keys() ? kSegmentBlocks * steps() * kStepBytes : 0)),
          values_(carver.take<std::byte>(type == KvType::int8 ? kSegmentBlocks * value_bytes() : 0)) {}

    std::int64_t steps() const { return (shape_.dim + kStepDims - 1) / kStepDims; }
    std::int64_t value_bytes() const { return 2 * kBlock * shape_.padded_dim(); }
    std::size_t pair_bytes() const { return static_cast<std::size_t>(4 * shape_.padded_dim()); }
    bool copies_keys() const { return type == KvType::int8 || shape_.dim % kStepDims; }
    void prefetch_block(const std::byte* block) const { prefetch_lines(block, shape_.block_head_bytes() / 64); }

    // The keys of a block as bfloat16, padded with zeros to whole steps.
    const std::byte* copy_keys(const std::byte* block, std::byte* out) const {
        constexpr std::int64_t kPairBytes = 4 * kBlock;
        for (std::int64_t d = 0; d < shape_.dim; d += 2)
            store_bf16_pairs(out + d / 2 * kPairBytes, load_keys<type>(block, d, 0), load_keys<type>(block, d, 1));
        const std::int64_t used = shape_.dim / 2 * kPairBytes;
        std::memset(out + used, 0, steps() * kStepBytes - used);
        return out;
    }

    const std::byte* widen_values(const std::byte* block, std::byte* out) const {
        const std::int64_t padded = shape_.padded_dim();
        for (std::int64_t p = 0; p < kBlock; p += 2)
            for (std::int64_t d = 0; d < padded; d += 16)
                store_bf16_pairs(out + place_of_values<KvType::bf16>(p, d, padded),
                                 load_values<type>(block, p, d, padded, 0), load_values<type>(block, p, d, padded, 1));
        return out;
    }

    // A copy of a block of values with zeros at the positions from `written` on: there may be NaN.
    const std::byte* without_unwritten(const std::byte* block, std::int64_t written) const {
        const std::int64_t pairs = (written + 1) / 2, used = pairs * static_cast<std::int64_t>(pair_bytes());
        std::memcpy(last_values_, block, used);
        std::memset(last_values_ + used, 0, value_bytes() - used);
        if (written % 2) {
            auto* odd = reinterpret_cast<std::uint16_t*>(last_values_ + used) - 2 * shape_.padded_dim() + 1;
            for (std::int64_t d = 0; d < shape_.padded_dim(); ++d) odd[2 * d] = 0;
        }
        return last_values_;
    }

    void attend_tiles(const AttendRows<kRows, Query>& rows, int last_position) {
        const std::byte* last_values = blocks_.values[last_ - 1];
        if (type == KvType::bf16 && last_position % kBlock)
            blocks_.values[last_ - 1] = without_unwritten(last_values, last_position % kBlock);
        multiply_keys(queries_of(rows), rows.rows);
        for (int r = 0; r < rows.rows; ++r) weigh_row(rows.visible[r], r);
        multiply_values(rows.rows);
        for (int r = 0; r < rows.rows; ++r)
            std::memcpy(rows.results[r], results_ + r * result_stride(shape_), result_stride(shape_) * sizeof(float));
        blocks_.values[last_ - 1] = last_values;
    }

    // Rows of an item mostly follow one another; others are copied.
    const std::uint16_t* queries_of(const AttendRows<kRows, Query>& rows) const {
        const std::int64_t dim = steps() * kStepDims;
        bool follow = true;
        for (int r = 1; r < rows.rows; ++r) follow &= rows.queries[r] == rows.queries[0] + r * dim;
        if (follow) return rows.queries[0];
        for (int r = 0; r < rows.rows; ++r) std::memcpy(queries_ + r * dim, rows.queries[r], 2 * dim);
        return queries_;
    }

    void attend_few(const AttendRows<kRows, Query>& rows, int last_position) const {
        constexpr std::array<void (TileAttention::*)(const AttendRows<kRows, Query>&, int) const, kFewRows> by_rows{
            &TileAttention::attend_rows<1>, &TileAttention::attend_rows<2>, &TileAttention::attend_rows<3>,
            &TileAttention::attend_rows<4>};
        (this->*by_rows[rows.rows - 1])(rows, last_position);
    }

    template <int R>
    void attend_rows(const AttendRows<kRows, Query>& rows, int last_position) const {
        constexpr int kBeside = R <= 2 ? 4 : 2;
        const std::int64_t stride = result_stride(shape_);
        const FewRows part{few_queries_, scores_, kTileScoreStride, results_ + kResultValues, stride};
        for (int r = 0; r < R; ++r)
            for (std::int64_t d = 0; d < shape_.dim; ++d)
                few_queries_[r * kMaxHeadDim + d] = std::bit_cast<float>(std::uint32_t{rows.queries[r][d]} << 16);
        {
            const Flushed flushed;
            int block = first_;
            for (; block + kBeside <= last_; block += kBeside) score_few_blocks<R, kBeside>(part, block);
            for (; block < last_; ++block) score_few_blocks<R, 1>(part, block);
        }
        for (int r = 0; r < R; ++r) {
            weigh_row(rows.visible[r], r);
            float* weights = scores_ + r * kTileScoreStride;
            for (int p = first_ * kBlock; p < last_ * kBlock; ++p)
                weights[p] = std::bit_cast<float>(std::uint32_t{weights_[r * kWeightStride + p]} << 16);
            std::fill_n(results_ + r * stride + kResultValues, shape_.padded_dim(), 0.0f);
        }
        {
            const Flushed flushed;
            for (int block = first_; block < last_; ++block) {
                const int position = block * static_cast<int>(kBlock);
                weigh_few<type, R>(part, blocks_.values[block], after_values(block), shape_.padded_dim(), position,
                                   std::min<int>(kBlock, last_position - position));
            }
        }
        for (int r = 0; r < R; ++r) std::memcpy(rows.results[r], results_ + r * stride, stride * sizeof(float));
    }

    template <int R, int N>
    void score_few_blocks(const FewRows& part, int block) const {
        const std::byte *keys[N], *ahead[N];
        for (int n = 0; n < N; ++n) {
            keys[n] = blocks_.keys[block + n];
            ahead[n] = after_keys(block + n);
        }
        score_few<type, R, N>(part, keys, ahead, shape_.dim, block * kBlock);
    }

    void multiply_keys(const std::uint16_t* queries, int rows) const {
        const TileScope scope(attention_shapes(rows, kStepDims / 2));
        int block = first_;
        if (rows <= kTileRows) {
            for (; block + 4 <= last_; block += 4) score_blocks<1, 4>(queries, block);
            for (; block < last_; ++block) score_blocks<1, 1>(queries, block);
        } else {
            for (; block + 2 <= last_; block += 2) score_blocks<2, 2>(queries, block);
            if (block < last_) score_blocks<2, 1>(queries, block);
        }
    }

    // Blocks between what is read and what is asked for.
    int distance() const { return std::min(kBlocksAhead, last_ - first_); }
    // What is read so many blocks after the keys of a block: keys, else values. Null where nothing is.
    const std::byte* after_keys(int block) const {
        const int ahead = block + distance(), value = first_ + ahead - last_;
        if (!prefetches_ || (!few_ && copies_keys())) return nullptr;
        if (ahead < last_) return blocks_.keys[ahead];
        return value < last_ ? blocks_.values[value] : nullptr;
    }
    // The same after the values of a block: values, else keys of what is read next.
    const std::byte* after_values(int block) const {
        const int ahead = block + distance();
        if (!prefetches_ || (!few_ && type == KvType::int8)) return nullptr;
        if (ahead < last_) return blocks_.values[ahead];
        return ahead - last_ < next_.count ? next_.keys[ahead - last_] : nullptr;
    }

    template <int R, int N>
    void score_blocks(const std::uint16_t* query_rows, int block) const {
        const std::size_t query_bytes = static_cast<std::size_t>(2 * steps() * kStepDims);
        const auto* queries = reinterpret_cast<const std::byte*>(query_rows);
        const std::byte* ahead[N];
        for (int n = 0; n < N; ++n) ahead[n] = after_keys(block + n);
        each<R>([&](auto r) { each<N>([&](auto n) { tile_zero<score_tile(r, n)>(); }); });
        for (std::int64_t s = 0; s < steps(); ++s) {
            each<R>([&](auto r) {
                tile_load<row_tile(r)>(queries + r * kTileRows * query_bytes + s * kLine, query_bytes);
            });
            each<N>([&](auto n) {
                constexpr int key_tile = other_tile<R>(n);
                if (ahead[n]) prefetch_lines(ahead[n] + s * kStepBytes, kStepBytes / kLine);
                tile_load<key_tile>(blocks_.keys[block + n] + s * kStepBytes, kLine);
                each<R>([&](auto r) { tile_dot_bf16<score_tile(r, n), row_tile(r), key_tile>(); });
            });
        }
        each<R>([&](auto r) {
            each<N>([&](auto n) {
                float* out = scores_ + r * kTileRows * kTileScoreStride + (block + n) * kBlock;
                tile_store<score_tile(r, n)>(out, kTileScoreStride * sizeof(float));
            });
        });
    }

    // Turns a row of scores into weights in bfloat16, as `soften` does.
    void weigh_row(const Visible& visible, int row) const {
        float* scores = scores_ + row * kTileScoreStride;
        float* result = results_ + row * result_stride(shape_);
        const F16 hidden = splat(-INFINITY);
        F16 peaks = hidden;
        for (int b = first_; b < last_; ++b) {
            float* at = scores + b * kBlock;
            const int position = b * static_cast<int>(kBlock);
            F16 score = load(at);
            if constexpr (type == KvType::int8) score = mul(score, load(key_scales_[b]));
            if (softcap_ != 0.0f) score = mul(tanh(div(score, splat(softcap_))), splat(softcap_));
            if (!whole_block(visible, position)) score = where_visible(visible, position, score, hidden);
            peaks = max(peaks, score);
            store(at, score);
        }
        const F16 peak = splat(result[0] = reduce_max(peaks));
        F16 sums = zero();
        for (int b = first_; b < last_; ++b) {
            const int position = b * static_cast<int>(kBlock);
            F16 weight = exp(sub(load(scores + b * kBlock), peak));
            sums = add(sums, weight);
            if constexpr (type == KvType::int8) {
                weight = mul(weight, load(value_scales_[b]));
                if (!whole_block(visible, position)) weight = where_visible(visible, position, weight, zero());
            }
            store_bf16_factors(weights_ + row * kWeightStride + b * kBlock, weight);
        }
        result[1] = reduce_add(sums);
    }

    void multiply_values(int rows) const {
        const TileScope scope(attention_shapes(rows, kBlock / 2));
        const int groups = static_cast<int>(shape_.padded_dim() / 16);
        int group = 0;
        if (rows <= kTileRows) {
            for (; group + 4 <= groups; group += 4) weigh_values<1, 4>(group);
            for (; group < groups; ++group) weigh_values<1, 1>(group);
        } else {
            for (; group + 2 <= groups; group += 2) weigh_values<2, 2>(group);
            if (group < groups) weigh_values<2, 1>(group);
        }
    }

    // Sums of N times sixteen numbers of the head.
    template <int R, int N>
    void weigh_values(int group) const {
        constexpr std::int64_t kPairs = kBlock / 2;
        const auto* weights = reinterpret_cast<const std::byte*>(weights_);
        each<R>([&](auto r) { each<N>([&](auto n) { tile_zero<score_tile(r, n)>(); }); });
        for (int block = first_; block < last_; ++block) {
            each<R>([&](auto r) {
                tile_load<row_tile(r)>(weights + 2 * (r * kTileRows * kWeightStride + block * kBlock),
                                       2 * kWeightStride);
            });
            const std::byte* ahead = after_values(block);
            each<N>([&](auto n) {
                constexpr int value_tile = other_tile<R>(n);
                const std::size_t place = static_cast<std::size_t>(group + n) * kLine;
                if (ahead) prefetch_lines(ahead + place, kPairs, pair_bytes());
                tile_load<value_tile>(blocks_.values[block] + place, pair_bytes());
                each<R>([&](auto r) { tile_dot_bf16<score_tile(r, n), row_tile(r), value_tile>(); });
            });
        }
        const std::size_t stride = static_cast<std::size_t>(result_stride(shape_));
        each<R>([&](auto r) {
            each<N>([&](auto n) {
                float* out = results_ + r * kTileRows * stride + kResultValues + 16 * (group + n);
                tile_store<score_tile(r, n)>(out, stride * sizeof(float));
            });
        });
    }

    static constexpr std::size_t kLine = 64;

    const HeadShape shape_;
    const float softcap_;
    std::uint16_t* const queries_;     // [kRows][steps][kStepDims], where they are copied
    float* const scores_;              // [kRows][kTileScoreStride]
    std::uint16_t* const weights_;     // [kRows][kWeightStride]
    float* const few_queries_;         // [kFewRows][kMaxHeadDim]
    float* const results_;             // [kRows][result]
    std::byte* const last_values_;     // one block
    std::byte* const keys_;            // [kSegmentBlocks][steps][kStepBytes] where they are copied
    std::byte* const values_;          // [kSegmentBlocks][value_bytes] where they are widened
    SegmentBlocks blocks_;             // as tiles read them
    std::array<const float*, kSegmentBlocks> key_scales_, value_scales_;    // int8
    SegmentBlocks next_;
    int first_ = 0, last_ = 0;         // blocks that some row sees
    bool few_ = false;                 // the item's rows are multiplied in vector registers
    bool prefetches_ = false;          // for the first rows that read a segment
};

}  // namespace kvarn::KVARN_ISA

#endif
