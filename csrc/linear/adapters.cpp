// What adapters add to a linear layer. Three rounds: rows are normed; A for each block of rows of one adapter, panel by
// panel; then B. A panel is read from memory once for up to kBlockRows rows.
#include "linear/adapters.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "core/parallel.h"
#include "linear/float_tile.h"
#include "linear/prepare.h"
#include "simd/simd.h"

namespace kvarn::KVARN_ISA {

namespace {

constexpr std::int64_t kBlockRows = 48;       // rows of one adapter that are a piece of work
constexpr std::int64_t kPiecePanels = 16;     // panels of B in a piece
constexpr std::int64_t kRowGap = 16;          // floats between rows: equal places of rows in other cache sets
constexpr std::int64_t kAhead = 2048;         // bytes by which lines are asked for ahead
constexpr std::int64_t kPrepareNumbers = 16 * 1024;

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

// Lines of an adapter as they follow one another in its pages.
class Lines {
  public:
    Lines(const Adapter& adapter, std::int64_t per_page) : pages_(adapter.pages.data()), per_page_(per_page) {}
    const std::byte* at(std::int64_t line) const { return pages_[line / per_page_] + line % per_page_ * 64; }
    // Lines from this one on that are neighbours in memory.
    std::int64_t together(std::int64_t line) const { return per_page_ - line % per_page_; }

  private:
    const std::byte* const* pages_;
    std::int64_t per_page_;
};

// sums [rows][panels][16] = x * W over `lines` lines of each of `panels` panels, the first of which begins at `first`.
template <class Form>
void multiply(const Lines& lines, std::int64_t first, std::int64_t count, int panels, const float* x,
              std::int64_t x_stride, std::int64_t rows, float* sums, std::int64_t sums_stride) {
    for (std::int64_t line = 0, run; line < count; line += run) {
        run = panels > 1 ? count : std::min(count - line, lines.together(first + line));
        const std::byte* at = lines.at(first + line);
        TileCall tile{x + line * Form::kInputs, x_stride, at,   static_cast<std::size_t>(count) * 64, run * Form::kInputs,
                      sums,                     sums_stride, line == 0, at + kAhead, 64};
        for (std::int64_t r = 0, step; r < rows; r += step) {
            step = std::min<std::int64_t>(kTileRows, rows - r);
            tile_of<Form>(step, panels)(tile);
            tile.x += step * x_stride;
            tile.sums += step * sums_stride;
            tile.ask = tile.weights;   // the others read what is near by now
        }
    }
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
            std::int64_t inner = 0;
            for (const AdapterPart& part : parts) inner += ceil_div(part.rank, kPanel) * kPanel;
            inner_ = std::max(inner_, inner);
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
                std::memset(out_ + i * out_stride_, 0, static_cast<std::size_t>(call_.weight.out) * sizeof(float));
            }
        });
    }

    // Pieces of at most `most` panels of each part; `panels_of` says how many a part has.
    template <class PanelsOf>
    std::vector<Piece> cut(std::int64_t most, PanelsOf panels_of) const {
        std::vector<Piece> pieces;
        for (const Block& block : blocks_) {
            std::int64_t inner = 0;
            for (const AdapterPart& part : *block.parts) {
                const std::int64_t panels = panels_of(part);
                for (std::int64_t p = 0; p < panels; p += most)
                    pieces.push_back({&block, &part, inner, p, std::min(most, panels - p)});
                inner += ceil_div(part.rank, kPanel) * kPanel;
            }
        }
        return pieces;
    }

    void shrink() const {
        const auto pieces = cut(1, [](const AdapterPart& part) { return ceil_div(part.rank, kPanel); });
        parallel_pieces(static_cast<std::int64_t>(pieces.size()), [&](std::int64_t index) {
            const Piece& piece = pieces[static_cast<std::size_t>(index)];
            const Block& block = *piece.block;
            float* sums = inner_sums_ + block.first * inner_stride_ + piece.inner + piece.panel * kPanel;
            multiply<Form>(Lines(*block.adapter, per_page_), piece.part->first_line + piece.panel * in_lines_, in_lines_,
                           1, x_ + block.first * x_stride_, x_stride_, block.count, sums, inner_stride_);
            const F16 scale = splat(piece.part->scale);
            for (std::int64_t r = 0; r < block.count; ++r) store(sums + r * inner_stride_, mul(load(sums + r * inner_stride_), scale));
        });
    }

    void expand() const {
        const auto pieces = cut(kPiecePanels, [](const AdapterPart& part) { return ceil_div(part.outs, kPanel); });
        parallel_pieces(static_cast<std::int64_t>(pieces.size()), [&](std::int64_t index) {
            const Piece& piece = pieces[static_cast<std::size_t>(index)];
            const Block& block = *piece.block;
            const AdapterPart& part = *piece.part;
            const Lines lines(*block.adapter, per_page_);
            const std::int64_t rank_lines = ceil_div(part.rank, Form::kInputs);
            const std::int64_t b = part.first_line + ceil_div(part.rank, kPanel) * in_lines_;
            const float* x = inner_sums_ + block.first * inner_stride_ + piece.inner;
            alignas(64) float sums[kBlockRows * kTilePanels * kPanel];
            for (std::int64_t p = piece.panel, step; p < piece.panel + piece.panels; p += step) {
                const std::int64_t first = b + p * rank_lines;
                step = panels_at_once(std::min<std::int64_t>(block.count, kTileRows));
                while (step > 1 && (step > piece.panel + piece.panels - p || step * rank_lines > lines.together(first)))
                    step /= 2;
                multiply<Form>(lines, first, rank_lines, static_cast<int>(step), x, inner_stride_, block.count, sums,
                               kTilePanels * kPanel);
                put(block, part, p, step, sums);
            }
        });
    }

    void put(const Block& block, const AdapterPart& part, std::int64_t panel, std::int64_t panels, const float* sums) const {
        for (std::int64_t r = 0; r < block.count; ++r)
            for (std::int64_t p = 0; p < panels; ++p) {
                const std::int64_t first = (panel + p) * kPanel;
                const int lanes = static_cast<int>(std::min(kPanel, part.outs - first));
                float* out = out_ + (block.first + r) * out_stride_ + part.first_out + first;
                store_first(out, load(sums + (r * kTilePanels + p) * kPanel), lanes);
            }
    }

    const LinearCall& call_;
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
