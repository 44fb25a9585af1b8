// Who reads which keys in one step: worked out once, used by all layers of one window.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvarn {

constexpr std::int64_t kBlock = 16;         // positions of a block
constexpr std::int64_t kSegment = 256;      // positions of a segment
constexpr std::int64_t kSegmentBlocks = kSegment / kBlock;
constexpr std::int64_t kTileTokens = 64;    // most tokens whose queries one work item answers

// A step as the engine describes it (kvarn/kernels/batch.py). The arrays must outlive the metadata.
struct StepTables {
    std::int64_t sequences;               // S
    std::int64_t tokens;                  // T
    const std::int32_t* query_starts;     // [S + 1]: sequence s has tokens query_starts[s] to query_starts[s + 1]
    const std::int32_t* context_lens;     // [S]: its tokens are the last of so many positions
    const std::int32_t* block_tables;     // [S, table_stride]
    std::int64_t table_stride;            // from row to row
    std::int64_t table_blocks;            // entries of a row
    const std::int64_t* slots;            // [T]: block * kBlock + offset where a token's key and value go
    std::int64_t window;                  // positions a query sees, its own included; 0: all up to its own
    bool causal;                          // else a query sees as many positions after its own too
    std::int64_t threads;                 // that will share the work
    std::int64_t kv_heads;
    std::int64_t group;                   // query heads that share a key/value head
};

// The segments one token's queries read.
struct TokenReads {
    std::int32_t position;
    std::int32_t end;             // one past the last position it sees
    std::int32_t first_segment;
    std::int32_t last_segment;    // one past
    std::int32_t partial = -1;    // its first slot for results of segments; -1 where one item reads all of them
};

// Some tokens read some segments of the blocks of `sequence`. For every key/value head it is one piece of work.
struct WorkItem {
    std::int32_t sequence;        // whose block table is read; tokens of several sequences may share it
    std::int32_t first_token;     // into AttentionMetadata::item_tokens
    std::int32_t num_tokens;
    std::int32_t first_segment;
    std::int32_t last_segment;    // one past
    std::int64_t cost;            // roughly
    std::int32_t first_of_run = 0, run_items = 1;    // the run it belongs to, see AttentionMetadata::piece
};

// A work item for one key/value head.
struct WorkPiece {
    std::int64_t item, kv_head;
};

// Tokens of one sequence in blocks that no other range writes to.
struct WriteRange {
    std::int32_t first_token;
    std::int32_t last_token;    // one past
};

class AttentionMetadata {
  public:
    // Throws std::invalid_argument where the step does not fit together: nothing is read past the end of its arrays.
    explicit AttentionMetadata(const StepTables& step);

    const StepTables step;
    std::vector<TokenReads> reads;          // of every token
    std::vector<WriteRange> writes;
    std::vector<WorkItem> items;            // the dearest runs first, and in a run the dearest items
    std::vector<std::int32_t> item_tokens;
    std::vector<std::int32_t> split_tokens;    // tokens whose segments are joined after all items are done
    std::int64_t num_partials = 0;
    std::int64_t num_blocks = 0;               // that a cache must have: one more than the largest id used

    std::int64_t num_tokens() const { return static_cast<std::int64_t>(reads.size()); }
    // Piece `number` of items * kv_heads. Of a run all items of one head follow one another, the dearest first, and then
    // those of the next head: its keys and values stay near meanwhile.
    WorkPiece piece(std::int64_t number, std::int64_t kv_heads) const {
        const WorkItem& any = items[number / kv_heads];
        const std::int64_t place = number - any.first_of_run * kv_heads;
        return {any.first_of_run + place % any.run_items, place / any.run_items};
    }
    std::span<const std::int32_t> tokens_of(const WorkItem& item) const {
        return {item_tokens.data() + item.first_token, static_cast<std::size_t>(item.num_tokens)};
    }
    // Ids of the blocks of one segment that the sequence has.
    std::span<const std::int32_t> blocks_of(std::int64_t sequence, std::int64_t segment) const;

  private:
    void check_sequence(std::int64_t sequence) const;
    void use_blocks(std::int64_t sequence);
    void read_sequence(std::int64_t sequence);
    void cut_writes(std::int64_t sequence);
    std::int64_t choose_tile_tokens() const;
    void share_segments();
    void cut_tiles();
    void order_items();

    std::int64_t first_token(std::int64_t sequence) const { return step.query_starts[sequence]; }
    std::int64_t last_token(std::int64_t sequence) const { return step.query_starts[sequence + 1]; }
    bool ends_before(std::int64_t sequence, std::int64_t segment) const {
        return step.context_lens[sequence] <= segment * kSegment;
    }
    std::vector<std::int32_t> tokens_of_sequences(std::span<const std::int32_t> sequences) const;
    void add_item(std::int64_t sequence, std::span<const std::int32_t> tokens, std::int64_t first_segment,
                  std::int64_t last_segment);
    void split(std::span<const std::int32_t> tokens);

    std::int64_t tile_tokens_ = 0;          // most tokens of one item
    std::vector<std::int32_t> own_from_;    // of every sequence: its segments from here on are read by it alone
};

}  // namespace kvarn
