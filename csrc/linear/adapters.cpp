// What adapters add to a linear layer. Three rounds: rows are normed; A for each block of rows of one adapter, panel by
// panel; then B. A panel is read from memory once for up to kBlockRows rows.
//
// A step of many requests reads many adapters for one or two rows each, so weights come from memory once and are used
// once: what counts is to read them in the order in which they lie, in long runs, with few instructions between.
#include "linear/adapters.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "core/parallel.h"
#include "linear/float_tile.h"
#include "linear/prepare.h"
#include "simd/simd.h"

namespace kvarn::KVARN_ISA {

namespace {

constexpr std::int64_t kBlockRows = 48;       // rows of one adapter that are a piece of work
constexpr std::int64_t kPieceLines = 1024;    // lines of B in a piece, or one panel
constexpr std::int64_t kRowGap = 16;          // floats between rows: equal places of rows in other cache sets
constexpr std::int64_t kAhead = 2048;         // bytes by which lines are asked for ahead
constexpr std::int64_t kPrepareNumbers = 16 * 1024;

// Lines of A are added to so many chains of sums in turn, since one chain would wait for its own multiply-adds; and the
// rows whose chains fit into registers.
#if KVARN_WIDE
constexpr int kChains = 4, kChainRows = 6;
#else
constexpr int kChains = 2, kChainRows = 3;
#endif

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// Rows of one adapter.
struct Block {
    const Adapter* adapter;
    const std::vector<AdapterPart>* parts;
    std::int64_t first, count;     // of the rows that have an adapter for this layer
};
struct Piece {
    const Block* block;
    const AdapterPart* part;
    std::int64_t inner;            // first number of the part among a row's results of A
    std::int64_t panel, panels;
};

// Calls body(lines, number of the first, count) for `count` lines from `first` on, in order. Counts are multiples of
// kChains: lines around the end of a page, and the last ones, are copied, with zeros behind them.
template <class Body>
void in_groups(const AdapterLines& lines, std::int64_t first, std::int64_t count, Body body) {
    alignas(64) std::byte group[kChains * 64];
    for (std::int64_t line = 0, run; line < count; line += run) {
        run = std::min(count - line, lines.together(first + line)) / kChains * kChains;
        if (run) {
            body(lines.at(first + line), line, run);
            continue;
        }
        run = std::min<std::int64_t>(kChains, count - line);
        std::memset(group, 0, sizeof(group));
        for (std::int64_t i = 0; i < run; ++i) std::memcpy(group + i * 64, lines.at(first + line + i), 64);
        body(group, line, kChains);
    }
}

// Adds x * W over `count` lines of one panel to the chains of R rows: line l to chain l % kChains.
template <int R, class Form>
void add_lines(const std::byte* line, std::int64_t count, const float* x, std::int64_t x_stride, F16 (*sums)[kChains]) {
    F16 sum[R][kChains];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int c = 0; c < kChains; ++c) sum[r][c] = sums[r][c];
    for (std::int64_t l = 0; l < count; l += kChains, line += kChains * 64, x += kChains * Form::kInputs) {
#pragma GCC unroll 4
        for (int c = 0; c < kChains; ++c) {
            __builtin_prefetch(line + c * 64 + kAhead);
#pragma GCC unroll 2
            for (int i = 0; i < Form::kInputs; ++i) {
                const F16 w = Form::weights(line + c * 64, i);
#pragma GCC unroll 16
                for (int r = 0; r < R; ++r)
                    sum[r][c] = settled(fma(splat(x[r * x_stride + c * Form::kInputs + i]), w, sum[r][c]));
            }
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int c = 0; c < kChains; ++c) sums[r][c] = sum[r][c];
}

template <class Form, int... R>
constexpr auto add_lines_of(std::integer_sequence<int, R...>) {
    return std::array{&add_lines<R + 1, Form>...};
}

// The sum of a row's chains, in a fixed tree.
inline F16 joined(const F16 (&chains)[kChains]) {
    F16 sum[kChains];
    std::copy_n(chains, kChains, sum);
    for (int half = kChains / 2; half; half /= 2)
        for (int c = 0; c < half; ++c) sum[c] = add(sum[c], sum[c + half]);
    return sum[0];
}

template <class Form>
class Deltas {
  public:
    Deltas(const AdapterBatch& batch, std::int64_t layer, const LinearCall& call)
        : call_(call), per_page_(batch.table->lines_per_page), in_lines_(ceil_div(call.weight.in, Form::kInputs)) {
        for (const AdapterGroup& group : batch.groups) {
            const Adapter& adapter = batch.table->adapters[static_cast<std::size_t>(group.adapter)];
            if (static_cast<std::size_t>(layer) >= adapter.layers.size()) continue;
            const auto& parts = adapter.layers[static_cast<std::size_t>(layer)];
            if (parts.empty()) continue;
            for (std::int64_t r = 0; r < group.count; r += kBlockRows)
                blocks_.push_back({&adapter, &parts, static_cast<std::int64_t>(rows_.size()) + r,
                                   std::min(kBlockRows, group.count - r)});
            const auto begin = batch.rows.begin() + group.first;
            rows_.insert(rows_.end(), begin, begin + group.count);
            std::int64_t inner = 0, outs = 0;
            for (const AdapterPart& part : parts) {
                inner += ceil_div(part.rank, kPanel) * kPanel;
                outs += part.outs;
            }
            inner_ = std::max(inner_, inner);
            gaps_ |= outs < call.weight.out;
        }
    }

    // [rows of the call] addresses of what is added to each, null where nothing is; null where nothing is to any row.
    const float* const* run(Workspace& workspace) {
        if (rows_.empty()) return nullptr;
        const auto count = static_cast<std::int64_t>(rows_.size());
        x_stride_ = call_.weight.in_padded() + kRowGap;
        inner_stride_ = inner_ + kRowGap;
        out_stride_ = ceil_div(call_.weight.out, kPanel) * kPanel + kRowGap;
        const float** deltas = nullptr;
        const auto carve = [&](std::byte* memory) {
            Carver carver(memory);
            deltas = carver.take<const float*>(call_.rows);
            x_ = carver.take<float>(count * x_stride_);
            inner_sums_ = carver.take<float>(count * inner_stride_);
            out_ = carver.take<float>(count * out_stride_);
            return carver.used();
        };
        carve(workspace.reserve(carve(nullptr)));
        std::fill_n(deltas, call_.rows, nullptr);
        for (std::int64_t i = 0; i < count; ++i) deltas[rows_[static_cast<std::size_t>(i)]] = out_ + i * out_stride_;
        prepare(count);
        shrink();
        expand();
        return deltas;
    }

  private:
    void prepare(std::int64_t count) const {
        const std::int64_t rows_each = std::max<std::int64_t>(1, kPrepareNumbers / x_stride_);
        parallel_pieces(ceil_div(count, rows_each), [&](std::int64_t piece) {
            for (std::int64_t i = piece * rows_each; i < std::min(count, (piece + 1) * rows_each); ++i) {
                prepare_row(call_, rows_[static_cast<std::size_t>(i)], x_ + i * x_stride_);
                if (gaps_) std::fill_n(out_ + i * out_stride_, call_.weight.out, 0.0f);
            }
        });
    }

    // Pieces of at most most_of(part) of the panels_of(part) panels of each part.
    template <class PanelsOf, class MostOf>
    std::vector<Piece> cut(PanelsOf panels_of, MostOf most_of) const {
        std::vector<Piece> pieces;
        for (const Block& block : blocks_) {
            std::int64_t inner = 0;
            for (const AdapterPart& part : *block.parts) {
                const std::int64_t panels = panels_of(part), most = most_of(part);
                for (std::int64_t p = 0; p < panels; p += most)
                    pieces.push_back({&block, &part, inner, p, std::min(most, panels - p)});
                inner += ceil_div(part.rank, kPanel) * kPanel;
            }
        }
        return pieces;
    }

    void shrink() const {
        static constexpr auto add_lines = add_lines_of<Form>(std::make_integer_sequence<int, kChainRows>());
        const auto pieces = cut([](const AdapterPart& part) { return ceil_div(part.rank, kPanel); },
                                [](const AdapterPart&) { return std::int64_t{1}; });
        parallel_pieces(static_cast<std::int64_t>(pieces.size()), [&](std::int64_t index) {
            const Piece& piece = pieces[static_cast<std::size_t>(index)];
            const Block& block = *piece.block;
            const AdapterLines lines(*block.adapter, per_page_);
            const std::int64_t first = piece.part->first_line + piece.panel * in_lines_;
            const float* x = x_ + block.first * x_stride_;
            float* inner = inner_sums_ + block.first * inner_stride_ + piece.inner + piece.panel * kPanel;
            const F16 scale = splat(piece.part->scale);
            for (std::int64_t r = 0, rows; r < block.count; r += rows) {
                rows = std::min<std::int64_t>(kChainRows, block.count - r);
                F16 sums[kChainRows][kChains];
                for (auto& chains : sums) std::fill_n(chains, kChains, zero());
                in_groups(lines, first, in_lines_, [&](const std::byte* at, std::int64_t line, std::int64_t count) {
                    add_lines[static_cast<std::size_t>(rows - 1)](at, count, x + r * x_stride_ + line * Form::kInputs,
                                                                  x_stride_, sums);
                });
                for (std::int64_t i = 0; i < rows; ++i)
                    store(inner + (r + i) * inner_stride_, mul(joined(sums[i]), scale));
            }
        });
    }

    void expand() const {
        const auto pieces = cut([](const AdapterPart& part) { return ceil_div(part.outs, kPanel); },
                                [](const AdapterPart& part) {
                                    return std::max<std::int64_t>(1, kPieceLines / ceil_div(part.rank, Form::kInputs));
                                });
        parallel_pieces(static_cast<std::int64_t>(pieces.size()), [&](std::int64_t index) {
            const Piece& piece = pieces[static_cast<std::size_t>(index)];
            const AdapterPart& part = *piece.part;
            const AdapterLines lines(*piece.block->adapter, per_page_);
            const std::int64_t rank_lines = ceil_div(part.rank, Form::kInputs);
            const std::int64_t b = part.first_line + ceil_div(part.rank, kPanel) * in_lines_;
            const std::int64_t whole = part.outs / kPanel;   // panels of sixteen outputs; the last may have fewer
            for (std::int64_t p = piece.panel, end = p + piece.panels, run; p < end; p += run) {
                const std::int64_t first = b + p * rank_lines;
                run = std::min({end - p, whole - p, lines.together(first) / rank_lines});
                if (run > 0) {
                    expand_run(piece, p, run, lines.at(first), rank_lines);
                } else {
                    run = 1;
                    expand_panel(piece, p, lines, first, rank_lines);
                }
            }
        });
    }

    TileCall tile_call(const Piece& piece, std::int64_t rank_lines) const {
        TileCall tile{};
        tile.x = inner_sums_ + piece.block->first * inner_stride_ + piece.inner;
        tile.x_stride = inner_stride_;
        tile.panel_stride = static_cast<std::size_t>(rank_lines) * 64;
        tile.ask_step = 64;
        return tile;
    }
    float* out_of(const Piece& piece, std::int64_t panel) const {
        return out_ + piece.block->first * out_stride_ + piece.part->first_out + panel * kPanel;
    }

    // Panels of sixteen outputs that are neighbours in memory.
    void expand_run(const Piece& piece, std::int64_t panel, std::int64_t panels, const std::byte* weights,
                    std::int64_t rank_lines) const {
        TileCall tile = tile_call(piece, rank_lines);
        tile.inputs = rank_lines * Form::kInputs;
        tile.sums_stride = out_stride_;
        tile.begins = true;
        float* out = out_of(piece, panel);
        for (std::int64_t r = 0, rows; r < piece.block->count; r += rows) {
            rows = std::min<std::int64_t>(kTileRows, piece.block->count - r);
            tile.weights = weights;
            tile.sums = out + r * out_stride_;
            int step = panels_at_once(rows);
            for (std::int64_t left = panels; left; left -= step) {
                while (step > left) step /= 2;
                tile.ask = tile.weights + kAhead;
                tile_of<Form>(rows, step)(tile);
                tile.weights += static_cast<std::size_t>(step) * tile.panel_stride;
                tile.sums += step * kPanel;
            }
            tile.x += rows * inner_stride_;
        }
    }

    // One panel, which may lie in several pages and have fewer than sixteen outputs.
    void expand_panel(const Piece& piece, std::int64_t panel, const AdapterLines& lines, std::int64_t first,
                      std::int64_t rank_lines) const {
        alignas(64) float sums[kTileRows * kPanel];
        TileCall tile = tile_call(piece, rank_lines);
        const float* x = tile.x;
        tile.sums = sums;
        tile.sums_stride = kPanel;
        float* out = out_of(piece, panel);
        const int lanes = static_cast<int>(std::min(kPanel, piece.part->outs - panel * kPanel));
        for (std::int64_t r = 0, rows; r < piece.block->count; r += rows) {
            rows = std::min<std::int64_t>(kTileRows, piece.block->count - r);
            for (std::int64_t line = 0, run; line < rank_lines; line += run) {
                run = std::min(rank_lines - line, lines.together(first + line));
                tile.weights = tile.ask = lines.at(first + line);
                tile.inputs = run * Form::kInputs;
                tile.x = x + r * inner_stride_ + line * Form::kInputs;
                tile.begins = line == 0;
                tile_of<Form>(rows, 1)(tile);
            }
            for (std::int64_t i = 0; i < rows; ++i)
                store_first(out + (r + i) * out_stride_, load(sums + i * kPanel), lanes);
        }
    }

    const LinearCall& call_;
    bool gaps_ = false;   // an adapter leaves some outputs as they are
    std::int64_t per_page_, in_lines_, inner_ = 0, x_stride_ = 0, inner_stride_ = 0, out_stride_ = 0;
    std::vector<Block> blocks_;
    std::vector<std::int64_t> rows_;
    float *x_ = nullptr, *inner_sums_ = nullptr, *out_ = nullptr;
};

}  // namespace

const float* const* adapter_deltas(const AdapterBatch& batch, std::int64_t layer, const LinearCall& call,
                                   Workspace& workspace) {
    if (batch.table->wide) return Deltas<FloatLines>(batch, layer, call).run(workspace);
    return Deltas<Bf16Lines>(batch, layer, call).run(workspace);
}

}  // namespace kvarn::KVARN_ISA
