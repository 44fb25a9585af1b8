// What adapters add to a linear layer. Three rounds: rows are normed; A for each block of rows of one adapter, panel by
// panel; then B. A panel is read from memory once for up to kBlockRows rows.
#include "linear/adapters.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/parallel.h"
#include "linear/adapter_products.h"
#include "linear/prepare.h"
#include "simd/simd.h"

namespace kvarn::KVARN_ISA {

namespace {

constexpr std::int64_t kBlockRows = 48;       // rows of one adapter that are a piece of work
constexpr std::int64_t kPieceLines = 1024;    // lines of B in a piece, or one panel
constexpr std::int64_t kRowGap = 16;          // floats between rows: equal places of rows in other cache sets
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

template <class Lines>
class Deltas {
  public:
    Deltas(const AdapterBatch& batch, std::int64_t layer, const LinearCall& call)
        : call_(call), per_page_(batch.table->lines_per_page), in_lines_(ceil_div(call.weight.in, Lines::kInputs)) {
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
        const auto pieces = cut([](const AdapterPart& part) { return ceil_div(part.rank, kPanel); },
                                [](const AdapterPart&) { return std::int64_t{1}; });
        parallel_pieces(static_cast<std::int64_t>(pieces.size()), [&](std::int64_t index) {
            const Piece& piece = pieces[static_cast<std::size_t>(index)];
            const Block& block = *piece.block;
            alignas(64) float sums[kBlockRows * kPanel];
            multiply<Lines>(AdapterLines(*block.adapter, per_page_),
                           {piece.part->first_line + piece.panel * in_lines_, in_lines_, 1,
                            x_ + block.first * x_stride_, x_stride_, sums, kPanel, block.count});
            float* inner = inner_of(piece) + piece.panel * kPanel;
            for (std::int64_t r = 0; r < block.count; ++r)
                store(inner + r * inner_stride_, mul(load(sums + r * kPanel), splat(piece.part->scale)));
        });
    }

    void expand() const {
        const auto lines_of = [](const AdapterPart& part) { return ceil_div(part.rank, Lines::kInputs); };
        const auto pieces = cut([](const AdapterPart& part) { return ceil_div(part.outs, kPanel); },
                                [&](const AdapterPart& part) {
                                    return std::max<std::int64_t>(1, kPieceLines / lines_of(part));
                                });
        parallel_pieces(static_cast<std::int64_t>(pieces.size()), [&](std::int64_t index) {
            const Piece& piece = pieces[static_cast<std::size_t>(index)];
            const Block& block = *piece.block;
            const AdapterPart& part = *piece.part;
            const AdapterLines lines(*block.adapter, per_page_);
            const std::int64_t b = part.first_line + ceil_div(part.rank, kPanel) * in_lines_;
            float* out = out_ + block.first * out_stride_ + part.first_out;
            const auto product = [&](std::int64_t panel, std::int64_t panels, float* sums, std::int64_t stride) {
                multiply<Lines>(lines, {b + panel * lines_of(part), lines_of(part), panels, inner_of(piece),
                                       inner_stride_, sums, stride, block.count});
            };
            const std::int64_t whole = std::min(piece.panels, part.outs / kPanel - piece.panel);
            product(piece.panel, whole, out + piece.panel * kPanel, out_stride_);
            if (whole == piece.panels) return;
            // The last panel has fewer outputs, and behind them stand those of another part.
            alignas(64) float sums[kBlockRows * kPanel];
            product(piece.panel + whole, 1, sums, kPanel);
            for (std::int64_t r = 0; r < block.count; ++r)
                store_first(out + r * out_stride_ + (piece.panel + whole) * kPanel, load(sums + r * kPanel),
                            static_cast<int>(part.outs % kPanel));
        });
    }

    // Where the results of A of a piece's rows begin.
    float* inner_of(const Piece& piece) const {
        return inner_sums_ + piece.block->first * inner_stride_ + piece.inner;
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
