#include <type_traits>

#include "attention/attention.h"
#include "attention/segment.h"
#include "attention/tiles.h"
#include "attention/write.h"
#include "core/parallel.h"

namespace kvarn::KVARN_ISA {

namespace {

// Tiles multiply bfloat16; a cache of floats is read in float32 on every instruction set.
#if KVARN_HAS_TILES
template <KvType type>
using SegmentAttention = std::conditional_t<type == KvType::f32, VectorAttention<type>, TileAttention<type>>;
#else
template <KvType type>
using SegmentAttention = VectorAttention<type>;
#endif

// Scratch memory of one call.
template <KvType type>
struct Scratch {
    using Query = typename SegmentAttention<type>::Query;
    static constexpr int kRows = SegmentAttention<type>::kRows;

    QueryPlace queries;
    float* partials;    // [metadata.num_partials, H, result]
    float* threads;     // [threads, thread_floats]
    std::int64_t segment_floats, thread_floats;

    Scratch(Carver& carver, const AttentionCall& call) : queries{nullptr, nullptr, call.shape, call.metadata->num_tokens()} {
        const HeadShape& shape = call.shape;
        const std::int64_t stride = result_stride(shape);
        segment_floats = SegmentAttention<type>::scratch_floats(shape);
        thread_floats = segment_floats + (kRows + kTileTokens * shape.group()) * stride;
        const std::int64_t rows = queries.tokens * shape.query_heads;
        if constexpr (kRounded) queries.rounded = carver.take<std::uint16_t>(rows * queries.rounded_dim());
        else queries.floats = carver.take<float>(rows * shape.dim);
        partials = carver.take<float>(call.metadata->num_partials * shape.query_heads * stride);
        threads = carver.take<float>(omp_get_max_threads() * thread_floats);
    }

    const Query* query(std::int64_t token, std::int64_t head) const {
        if constexpr (kRounded) return queries.rounded_row(token, head);
        else return queries.float_row(token, head);
    }

  private:
    static constexpr bool kRounded = std::is_same_v<Query, std::uint16_t>;
};

// Answers the work item `item` for the queries of one key/value head.
template <KvType type>
class ItemWork {
  public:
    ItemWork(const AttentionCall& call, const Scratch<type>& scratch, const WorkItem& item, std::int64_t kv_head)
        : call_(call), shape_(call.shape), scratch_(scratch), item_(item), tokens_(call.metadata->tokens_of(item)),
          kv_head_(kv_head), stride_(result_stride(call.shape)),
          later_(scratch.threads + omp_get_thread_num() * scratch.thread_floats + scratch.segment_floats),
          states_(later_ + kRows * stride_), attention_(shape_, call.softcap, later_ - scratch.segment_floats) {}

    // The blocks that are read first.
    SegmentBlocks first_blocks() const { return blocks_of(item_.first_segment); }

    // `after`: the blocks that this thread is likely to read next.
    void run(const SegmentBlocks& after) {
        const int rows = static_cast<int>(item_.num_tokens * shape_.group());
        const int parts = (rows + kRows - 1) / kRows, rows_each = (rows + parts - 1) / parts;
        SegmentBlocks blocks, next = blocks_of(item_.first_segment);
        for (std::int64_t segment = item_.first_segment; segment < item_.last_segment; ++segment) {
            blocks = next;
            next = segment + 1 < item_.last_segment ? blocks_of(segment + 1) : after;
            attention_.begin(blocks, next, rows);
            for (int row = 0; row < rows; row += rows_each)
                attend_rows(segment, row, std::min(rows, row + rows_each));
        }
        for (int row = 0; row < rows; ++row)
            if (reads(row).partial < 0) finish(states_ + row * stride_, call_.sink(head(row)), shape_.dim, out(row));
    }

  private:
    static constexpr int kRows = SegmentAttention<type>::kRows;

    const TokenReads& reads(int row) const { return call_.metadata->reads[tokens_[row / shape_.group()]]; }
    std::int64_t head(int row) const { return kv_head_ * shape_.group() + row % shape_.group(); }
    float* out(int row) const {
        return call_.out + tokens_[row / shape_.group()] * call_.out_stride + head(row) * shape_.dim;
    }

    SegmentBlocks blocks_of(std::int64_t segment) const {
        SegmentBlocks blocks;
        for (const std::int32_t id : call_.metadata->blocks_of(item_.sequence, segment)) {
            const std::int64_t place = id * shape_.block_bytes() + kv_head_ * shape_.block_head_bytes();
            blocks.keys[blocks.count] = call_.keys + place;
            blocks.values[blocks.count++] = call_.values + place;
        }
        return blocks;
    }

    Visible visible(const TokenReads& token, std::int64_t segment) const {
        const std::int64_t window = call_.metadata->step.window, begin = segment * kSegment;
        const std::int64_t first = window ? std::max(begin, token.position + 1 - window) : begin;
        const std::int64_t last = std::min<std::int64_t>(begin + kSegment, token.end);
        return {static_cast<int>(first - begin), static_cast<int>(last - begin)};
    }

    void attend_rows(std::int64_t segment, int first_row, int last_row) {
        AttendRows<kRows, typename Scratch<type>::Query> part;
        std::array<float*, kRows> join;    // the state a row's result is joined to; null where it is the state
        for (int row = first_row; row < last_row; ++row) {
            const TokenReads& token = reads(row);
            const Visible seen = visible(token, segment);
            if (seen.last <= seen.first) continue;
            const int r = part.rows++;
            const std::int64_t of_token = tokens_[row / shape_.group()];
            part.queries[r] = scratch_.query(of_token, head(row));
            part.visible[r] = seen;
            const bool first = token.partial >= 0 || segment == token.first_segment;
            join[r] = first ? nullptr : states_ + row * stride_;
            part.results[r] = first ? first_result(token, row, segment) : later_ + r * stride_;
        }
        if (part.rows == 0) return;
        attention_.attend(part);
        for (int r = 0; r < part.rows; ++r)
            if (join[r]) fold(join[r], part.results[r], shape_.padded_dim());
    }

    float* first_result(const TokenReads& token, int row, std::int64_t segment) const {
        if (token.partial < 0) return states_ + row * stride_;
        const std::int64_t slot = token.partial + segment - token.first_segment;
        return scratch_.partials + (slot * shape_.query_heads + head(row)) * stride_;
    }

    const AttentionCall& call_;
    const HeadShape& shape_;
    const Scratch<type>& scratch_;
    const WorkItem& item_;
    const std::span<const std::int32_t> tokens_;
    const std::int64_t kv_head_, stride_;
    float *const later_, *const states_;
    SegmentAttention<type> attention_;
};

template <KvType type>
void attend_items(const AttentionCall& call, const Scratch<type>& scratch) {
    const AttentionMetadata& metadata = *call.metadata;
    const std::int64_t heads = call.shape.kv_heads;
    const std::int64_t pieces = static_cast<std::int64_t>(metadata.items.size()) * heads, threads = omp_get_max_threads();
    const auto work_of = [&](std::int64_t number) {
        const WorkPiece piece = metadata.piece(number, heads);
        return ItemWork<type>(call, scratch, metadata.items[piece.item], piece.kv_head);
    };
    parallel_pieces(pieces, [&](std::int64_t number) {
        // Every other thread takes one piece meanwhile, if all take equally long.
        const std::int64_t later = number + threads;
        work_of(number).run(later < pieces ? work_of(later).first_blocks() : SegmentBlocks{});
    });
}

// Joins the segments of the tokens that several items read for.
void join_partials(const AttentionCall& call, float* partials) {
    const HeadShape& shape = call.shape;
    const std::int64_t heads = shape.query_heads, stride = result_stride(shape), groups = shape.kv_heads;
    const auto& tokens = call.metadata->split_tokens;
    parallel_pieces(static_cast<std::int64_t>(tokens.size()) * groups, [&](std::int64_t piece) {
        const std::int64_t token = tokens[piece / groups], first_head = piece % groups * shape.group();
        const TokenReads& reads = call.metadata->reads[token];
        for (std::int64_t head = first_head; head < first_head + shape.group(); ++head) {
            float* state = partials + (reads.partial * heads + head) * stride;
            for (std::int64_t i = 1; i < reads.last_segment - reads.first_segment; ++i)
                fold(state, state + i * heads * stride, shape.padded_dim());
            finish(state, call.sink(head), shape.dim, call.out + token * call.out_stride + head * shape.dim);
        }
    });
}

template <KvType type>
void run(const AttentionCall& call) {
    Carver count;
    Scratch<type>(count, call);
    Carver carver(call.workspace->reserve(count.used()));
    const Scratch<type> scratch(carver, call);
    write_step(call, scratch.queries);
    attend_items<type>(call, scratch);
    join_partials(call, scratch.partials);
}

}  // namespace

void attention(const AttentionCall& call) {
    switch (call.shape.kv_type) {
        case KvType::f32: return run<KvType::f32>(call);
        case KvType::bf16: return run<KvType::bf16>(call);
        case KvType::int8: return run<KvType::int8>(call);
    }
}

}  // namespace kvarn::KVARN_ISA
