#include "attention/metadata.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <tuple>

namespace kvarn {

namespace {

constexpr std::int64_t kFewTokens = 8;        // sequences with so few queries share reads with others
constexpr std::int64_t kMostPartials = 4096;  // results of segments that one tile may leave in scratch memory

// Reading a position costs about as much as four queries' arithmetic on it.
std::int64_t cost_of(std::int64_t positions, std::int64_t tokens) { return positions * (4 + tokens); }

void require(bool holds, const char* otherwise) {
    if (!holds) throw std::invalid_argument(otherwise);
}

struct Tile {
    std::int32_t sequence;
    std::vector<std::int32_t> tokens;
    std::int64_t first_segment, last_segment;
    bool shares;    // some of its tokens' segments are read by a shared item

    std::int64_t cost() const {
        return cost_of((last_segment - first_segment) * kSegment, static_cast<std::int64_t>(tokens.size()));
    }
};

}  // namespace

AttentionMetadata::AttentionMetadata(const StepTables& tables) : step(tables) {
    require(step.query_starts[0] == 0 && step.query_starts[step.sequences] == step.tokens,
            "the query starts do not begin at 0 and end at the number of tokens");
    reads.reserve(step.tokens);
    own_from_.reserve(step.sequences);
    for (std::int64_t sequence = 0; sequence < step.sequences; ++sequence) {
        check_sequence(sequence);
        read_sequence(sequence);
        cut_writes(sequence);
        use_blocks(sequence);
    }
    tile_tokens_ = choose_tile_tokens();
    share_segments();
    cut_tiles();
    order_items();
}

std::span<const std::int32_t> AttentionMetadata::blocks_of(std::int64_t sequence, std::int64_t segment) const {
    const std::int64_t blocks = (step.context_lens[sequence] + kBlock - 1) / kBlock;
    const std::int64_t first = segment * kSegmentBlocks;
    const std::int64_t count = std::clamp<std::int64_t>(blocks - first, 0, kSegmentBlocks);
    return {step.block_tables + sequence * step.table_stride + first, static_cast<std::size_t>(count)};
}

void AttentionMetadata::check_sequence(std::int64_t sequence) const {
    const std::int64_t count = last_token(sequence) - first_token(sequence), context = step.context_lens[sequence];
    require(count >= 0 && last_token(sequence) <= step.tokens, "the query starts do not ascend");
    require(count <= context, "a sequence has more queries than tokens");
    require(context <= step.table_blocks * kBlock, "a block table is too short for its sequence");
}

// Takes note of the blocks in which this step reads and writes.
void AttentionMetadata::use_blocks(std::int64_t sequence) {
    std::int32_t lowest = 0, highest = -1;
    for (std::int64_t segment = own_from_[sequence]; !ends_before(sequence, segment); ++segment)
        for (const std::int32_t block : blocks_of(sequence, segment)) {
            lowest = std::min(lowest, block);
            highest = std::max(highest, block);
        }
    require(lowest >= 0, "a block table names a negative block");
    num_blocks = std::max(num_blocks, std::int64_t{highest} + 1);
    for (std::int64_t token = first_token(sequence); token < last_token(sequence); ++token) {
        require(step.slots[token] >= 0, "a slot is negative");
        num_blocks = std::max(num_blocks, step.slots[token] / kBlock + 1);
    }
}

void AttentionMetadata::read_sequence(std::int64_t sequence) {
    const std::int64_t count = last_token(sequence) - first_token(sequence);
    std::int64_t own_from = 0;
    for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t position = step.context_lens[sequence] - count + i;
        const std::int64_t first = step.window ? std::max<std::int64_t>(0, position + 1 - step.window) : 0;
        std::int64_t end = position + 1;
        if (!step.causal) {
            end = step.context_lens[sequence];
            if (step.window) end = std::min(end, position + step.window);
        }
        reads.push_back({static_cast<std::int32_t>(position), static_cast<std::int32_t>(end),
                         static_cast<std::int32_t>(first / kSegment),
                         static_cast<std::int32_t>((end - 1) / kSegment + 1)});
        if (i == 0) own_from = first / kSegment;
    }
    own_from_.push_back(static_cast<std::int32_t>(own_from));
}

// Two tokens of one block share words of its values, so one range holds both, and its tokens are written together.
void AttentionMetadata::cut_writes(std::int64_t sequence) {
    const std::int64_t last = last_token(sequence);
    for (std::int64_t token = first_token(sequence); token < last;) {
        const std::int64_t offset = reads[token].position % kBlock, end = std::min(last, token + kBlock - offset);
        for (std::int64_t t = token; t < end; ++t)
            require(step.slots[t] == step.slots[token] + t - token, "tokens of one block have slots that do not follow");
        require(step.slots[token] < 0 || step.slots[token] % kBlock == offset, "a slot is not its position's");
        writes.push_back({static_cast<std::int32_t>(token), static_cast<std::int32_t>(end)});
        token = end;
    }
}

std::vector<std::int32_t> AttentionMetadata::tokens_of_sequences(std::span<const std::int32_t> sequences) const {
    std::vector<std::int32_t> tokens;
    for (const std::int32_t sequence : sequences)
        for (std::int64_t t = first_token(sequence); t < last_token(sequence); ++t)
            tokens.push_back(static_cast<std::int32_t>(t));
    return tokens;
}

void AttentionMetadata::add_item(std::int64_t sequence, std::span<const std::int32_t> tokens, std::int64_t first_segment,
                             std::int64_t last_segment) {
    const std::int64_t positions =
        std::min<std::int64_t>(step.context_lens[sequence], last_segment * kSegment) - first_segment * kSegment;
    items.push_back({static_cast<std::int32_t>(sequence), static_cast<std::int32_t>(item_tokens.size()),
                     static_cast<std::int32_t>(tokens.size()), static_cast<std::int32_t>(first_segment),
                     static_cast<std::int32_t>(last_segment),
                     cost_of(positions, static_cast<std::int64_t>(tokens.size()))});
    item_tokens.insert(item_tokens.end(), tokens.begin(), tokens.end());
}

// Gives each token a slot for the result of every segment it reads.
void AttentionMetadata::split(std::span<const std::int32_t> tokens) {
    for (const std::int32_t token : tokens) {
        if (reads[token].partial >= 0) continue;
        reads[token].partial = static_cast<std::int32_t>(num_partials);
        num_partials += reads[token].last_segment - reads[token].first_segment;
        split_tokens.push_back(token);
    }
}

// More tokens share what is read for them, up to a hundred rows or so, but threads must not stand idle.
std::int64_t AttentionMetadata::choose_tile_tokens() const {
    std::int64_t items = 0;
    for (std::int64_t sequence = 0; sequence < step.sequences; ++sequence)
        items += (last_token(sequence) - first_token(sequence)) / kTileTokens * step.kv_heads;
    return step.group <= 2 && items >= 4 * step.threads ? kTileTokens : kTileTokens / 2;
}

// Finds segments that are the same blocks for several sequences. Sequences share a prefix, so one that shares a
// segment with no other is not looked at again: without sharing this costs one sort.
void AttentionMetadata::share_segments() {
    std::vector<std::int32_t> waiting;
    for (std::int64_t sequence = 0; sequence < step.sequences; ++sequence) {
        const std::int64_t count = last_token(sequence) - first_token(sequence);
        if (count > 0 && count <= kFewTokens) waiting.push_back(static_cast<std::int32_t>(sequence));
    }
    std::stable_sort(waiting.begin(), waiting.end(), [&](auto a, auto b) { return own_from_[a] > own_from_[b]; });

    std::vector<std::int32_t> live, shared;
    for (std::int64_t segment = 0; !waiting.empty() || !live.empty(); ++segment) {
        if (live.empty()) segment = own_from_[waiting.back()];
        for (; !waiting.empty() && own_from_[waiting.back()] == segment; waiting.pop_back())
            live.push_back(waiting.back());
        std::erase_if(live, [&](auto sequence) { return ends_before(sequence, segment); });
        std::stable_sort(live.begin(), live.end(), [&](auto a, auto b) {
            return std::ranges::lexicographical_compare(blocks_of(a, segment), blocks_of(b, segment));
        });
        shared.clear();
        for (auto run = live.begin(); run != live.end();) {
            const auto end = std::find_if(run, live.end(), [&](auto sequence) {
                return !std::ranges::equal(blocks_of(*run, segment), blocks_of(sequence, segment));
            });
            if (end - run > 1) {
                const std::vector<std::int32_t> tokens = tokens_of_sequences({run, end});
                split(tokens);
                for (std::size_t i = 0; i < tokens.size(); i += tile_tokens_)
                    add_item(*run, std::span(tokens).subspan(i, std::min<std::size_t>(tile_tokens_, tokens.size() - i)),
                             segment, segment + 1);
                for (auto sequence = run; sequence != end; ++sequence)
                    own_from_[*sequence] = static_cast<std::int32_t>(segment + 1);
                shared.insert(shared.end(), run, end);
            }
            run = end;
        }
        live = shared;
    }
}

// Dear items first, so that no thread is left with one at the end. Those that read much of the same keys and values, of a
// prompt or of many sequences with one prefix, are a run, whose cost is theirs together.
void AttentionMetadata::order_items() {
    std::vector<std::int64_t> of_run(step.sequences);    // costs of items of many tokens
    const auto is_long = [](const WorkItem& item) { return item.num_tokens > kFewTokens; };
    for (const WorkItem& item : items)
        if (is_long(item)) of_run[item.sequence] += item.cost;
    const auto order = [&](const WorkItem& item) {
        const bool prompt = is_long(item);
        return std::tuple(prompt ? -of_run[item.sequence] : -item.cost, prompt ? item.sequence : -1, -item.cost);
    };
    std::stable_sort(items.begin(), items.end(), [&](const auto& a, const auto& b) { return order(a) < order(b); });
    for (std::size_t first = 0, last; first < items.size(); first = last) {
        last = first + 1;
        if (is_long(items[first]))
            while (last < items.size() && is_long(items[last]) && items[last].sequence == items[first].sequence) ++last;
        for (std::size_t item = first; item < last; ++item) {
            items[item].first_of_run = static_cast<std::int32_t>(first);
            items[item].run_items = static_cast<std::int32_t>(last - first);
        }
    }
}

// Tokens that share nothing are read in one item each tile, unless that would leave threads idle at the end.
void AttentionMetadata::cut_tiles() {
    std::vector<Tile> tiles;
    std::int64_t total = 0;
    for (std::int32_t sequence = 0; sequence < step.sequences; ++sequence)
        for (std::int64_t token = first_token(sequence); token < last_token(sequence); token += tile_tokens_) {
            const std::int64_t end = std::min(last_token(sequence), token + tile_tokens_);
            Tile tile{sequence, std::vector<std::int32_t>(end - token), 0, reads[end - 1].last_segment, false};
            std::iota(tile.tokens.begin(), tile.tokens.end(), static_cast<std::int32_t>(token));
            tile.shares = reads[token].partial >= 0;
            tile.first_segment = tile.shares ? own_from_[sequence] : reads[token].first_segment;
            if (tile.first_segment == tile.last_segment) continue;
            total += tile.cost();
            tiles.push_back(std::move(tile));
        }
    for (const WorkItem& item : items) total += item.cost;
    for (const Tile& tile : tiles) {
        const std::int64_t segments = tile.last_segment - tile.first_segment;
        const bool few_results = segments * static_cast<std::int64_t>(tile.tokens.size()) <= kMostPartials;
        const bool dear = tile.cost() > total / (2 * step.threads) && segments > 1 && few_results;
        if (!tile.shares && !dear) {
            add_item(tile.sequence, tile.tokens, tile.first_segment, tile.last_segment);
            continue;
        }
        split(tile.tokens);
        for (std::int64_t segment = tile.first_segment; segment < tile.last_segment; ++segment)
            add_item(tile.sequence, tile.tokens, segment, segment + 1);
    }
}

}  // namespace kvarn
