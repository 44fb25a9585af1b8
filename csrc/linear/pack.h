// Weights brought once, at load, into the layouts of linear.h, and rows read back out of them.
//
// What is packed lies row by row without gaps, all of it or each of several parts, one below the other; its [out] is gate
// above up where the weight is gated. All of a blob is written, its padding with zeros. `blob` has sections(weight).size
// bytes and begins on a 64-byte boundary.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "linear/linear.h"

namespace kvarn {

// Rows of one size, in parts one below the other.
class StackedRows {
  public:
    struct Part {
        const std::byte* first;
        std::int64_t rows;
    };
    StackedRows(std::vector<Part> parts, std::size_t row_bytes) : parts_(std::move(parts)), row_bytes_(row_bytes) {}

    const std::byte* operator[](std::int64_t row) const {
        const Part* part = parts_.data();
        for (; row >= part->rows; ++part) row -= part->rows;
        return part->first + static_cast<std::size_t>(row) * row_bytes_;
    }
    std::size_t row_bytes() const { return row_bytes_; }

  private:
    std::vector<Part> parts_;
    std::size_t row_bytes_;
};

// rows [out, in], float or bfloat16 as weight.format says.
void pack_float(const PackedWeight& weight, const StackedRows& rows, std::byte* blob);

// `values` [out, in]; `scales` [out].
void pack_int8(const PackedWeight& weight, const std::int8_t* values, const float* scales, std::byte* blob);

// `values` [out, in], 0 to 15; `scales` [out, groups] half precision; `zeros` [out, groups], null unless has_zeros;
// `sub_scales` [out, in / 32], -15 to 15, null unless has_sub_scales. Both divisions are rounded up; groups = in / group.
void pack_int4(const PackedWeight& weight, const std::uint8_t* values, const std::uint16_t* scales,
               const std::uint8_t* zeros, const std::int8_t* sub_scales, std::byte* blob);

// rows [out, in], float or bfloat16, quantised as kvarn/kernels/torch/quantize.py defines: int8, or int4 with sub-scales and
// groups of kScaleInputs. One for each instruction set, with the same bits.
//   void pack_quantised(const PackedWeight& weight, const StackedRows& rows, bool is_bf16, std::byte* blob);

// Rows `ids` [count] of the weight that was packed, 0 <= id < out, as floats: out [count, in].
void unpack_float(const PackedWeight& weight, const std::int64_t* ids, std::int64_t count, float* out);
void unpack_integer(const PackedWeight& weight, const std::int64_t* ids, std::int64_t count, float* out);

// Where a row of the unpacked weight stands: which panel, and which of its sixteen outputs.
struct Place {
    std::int64_t panel, lane;
};
inline Place place_of(const PackedWeight& weight, std::int64_t row) {
    if (!weight.gated) return {row / kPanel, row % kPanel};
    const std::int64_t half = weight.out / 2, of_half = row < half ? row : row - half;
    return {2 * (of_half / kPanel) + (row < half ? 0 : 1), of_half % kPanel};
}
// The row at lane 0 of a panel, and how many of the panel's lanes are rows.
struct PanelRows {
    std::int64_t first, count;
};
inline PanelRows rows_of(const PackedWeight& weight, std::int64_t panel) {
    const std::int64_t of_half = weight.gated ? panel / 2 * kPanel : panel * kPanel;
    const std::int64_t end = weight.gated ? weight.out / 2 : weight.out;
    const std::int64_t first = of_half + (weight.gated && panel % 2 ? weight.out / 2 : 0);
    return {first, end - of_half < kPanel ? end - of_half : kPanel};
}

}  // namespace kvarn
