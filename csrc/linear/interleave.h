// Rows of a weight brought into panels: sixteen rows, a 32-bit word of each in turn.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/parallel.h"
#include "linear/pack.h"

namespace kvarn {

// Writes `words` lines [16] of 32-bit words: word w of each of `rows` [count], zero for the other lanes and past the end of
// a row. A row of `row_bytes` bytes need not be aligned or end at a word.
inline void interleave(const std::byte* const* rows, std::int64_t count, std::size_t row_bytes, std::int64_t words,
                       std::byte* lines) {
    const auto whole = static_cast<std::int64_t>(row_bytes / 4);
    std::memset(lines + whole * 64, 0, static_cast<std::size_t>(words - whole) * 64);
    constexpr std::int64_t block = 64;   // words of a row at a time: the lines they go to stay in the cache
    for (std::int64_t first = 0; first < whole; first += block) {
        const std::int64_t end = first + block < whole ? first + block : whole;
        for (std::int64_t lane = 0; lane < kPanel; ++lane) {
            for (std::int64_t w = first; w < end; ++w) {
                std::uint32_t word = 0;
                if (lane < count) std::memcpy(&word, rows[lane] + w * 4, 4);
                std::memcpy(lines + w * 64 + lane * 4, &word, 4);
            }
        }
    }
    if (const std::size_t rest = row_bytes % 4)
        for (std::int64_t lane = 0; lane < count; ++lane)
            std::memcpy(lines + whole * 64 + lane * 4, rows[lane] + whole * 4, rest);
}

// A panel's rows, of a weight that lies row by row.
class RowsOfPanel {
  public:
    RowsOfPanel(const PackedWeight& weight, std::int64_t panel, const StackedRows& stacked) {
        const PanelRows of = rows_of(weight, panel);
        count_ = of.count;
        for (std::int64_t lane = 0; lane < count_; ++lane) rows_[lane] = stacked[of.first + lane];
    }
    const std::byte* const* data() const { return rows_; }
    const std::byte* operator[](std::int64_t lane) const { return rows_[lane]; }
    std::int64_t count() const { return count_; }

  private:
    const std::byte* rows_[kPanel];
    std::int64_t count_;
};

// Calls body(panel) for every panel, on all threads.
template <class Body>
void each_panel(const PackedWeight& weight, Body&& body) {
    constexpr std::int64_t panels_each = 4;
    parallel_pieces((weight.panels() + panels_each - 1) / panels_each, [&](std::int64_t piece) {
        const std::int64_t end = std::min(weight.panels(), (piece + 1) * panels_each);
        for (std::int64_t panel = piece * panels_each; panel < end; ++panel) body(panel);
    });
}

}  // namespace kvarn
