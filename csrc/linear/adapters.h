// Low-rank adapters of linear layers: out += scale * B (A x), for each row by the adapter that it names.
//
// An adapter's weights lie in pages, pieces of memory of equal size that need not be neighbours (chunks of KV blocks).
// They are a sequence of lines of 64 bytes, `lines_per_page` in each page. For each output range that the adapter
// changes come the lines of A [rank, in] and behind them those of B [outs, rank], as panels of 16 outputs in the
// layouts f32 or bf16 of linear/linear.h; inputs are padded to whole lines only.
//
// Order of sums: an output's lines are added to a few chains in turn (linear/adapter_products.h), A's first, then B's,
// whatever stands beside the row. Its sum is then added to the base weight's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/workspace.h"
#include "linear/linear.h"
#include "linear/prefetch.h"

namespace kvarn {

// What an adapter does to neighbouring outputs of a layer.
struct AdapterPart {
    std::int64_t first_line;   // of A, among the adapter's
    std::int64_t rank, in;
    std::int64_t first_out;    // as the base weight's rows are counted: where gated, gate above up
    std::int64_t outs;
    float scale;
};

struct Adapter {
    std::vector<const std::byte*> pages;
    std::vector<std::vector<AdapterPart>> layers;   // by the layer's number
};

// The lines of an adapter as they follow one another in its pages.
class AdapterLines {
  public:
    AdapterLines(const Adapter& adapter, std::int64_t per_page) : pages_(adapter.pages.data()), per_page_(per_page) {}
    const std::byte* at(std::int64_t line) const { return pages_[line / per_page_] + line % per_page_ * 64; }
    // Lines from this one on that are neighbours in memory.
    std::int64_t together(std::int64_t line) const { return per_page_ - line % per_page_; }

  private:
    const std::byte* const* pages_;
    std::int64_t per_page_;
};

// The adapters that can be used now, by index.
struct AdapterTable {
    std::int64_t lines_per_page;
    bool wide;                    // float lines, else bfloat16
    std::vector<Adapter> adapters;
};

// Rows of one step that have the same adapter.
struct AdapterGroup {
    std::int64_t adapter;         // index in the table
    std::int64_t first, count;    // of AdapterBatch::rows
};

// Which rows of a step have which adapter. The table must outlive it and stay as it is meanwhile.
struct AdapterBatch {
    const AdapterTable* table;
    std::vector<std::int64_t> rows;    // of the step, group by group
    std::vector<AdapterGroup> groups;
};

// What a step's adapters hold of one layer; layers are numbered in the order in which a step computes them.
PrefetchList lines_of_layer(const AdapterBatch& batch, std::int64_t layer);

}  // namespace kvarn
