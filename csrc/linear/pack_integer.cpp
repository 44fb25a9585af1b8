#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <vector>

#include "core/half.h"
#include "core/parallel.h"
#include "linear/interleave.h"
#include "linear/pack.h"

namespace kvarn {

namespace {

// Where byte `k % 4` of input k's quad lies for one output.
std::int64_t quad_byte(std::int64_t quad, std::int64_t lane, std::int64_t k) {
    return (quad * kPanel + lane) * kQuad + k % kQuad;
}

int nibble_shift(std::int64_t k) { return k / kQuad % 2 ? 4 : 0; }

void unpack_int8_row(const PackedWeight& weight, const Place& place, float* out) {
    const Sections at = sections(weight);
    const auto* values = reinterpret_cast<const std::int8_t*>(weight.blob + at.values + place.panel * at.panel_bytes);
    const float scale = reinterpret_cast<const float*>(weight.blob + at.scales)[place.panel * kPanel + place.lane];
    for (std::int64_t k = 0; k < weight.in; ++k)
        out[k] = static_cast<float>(values[quad_byte(k / kQuad, place.lane, k)]) * scale;
}

void unpack_int4_row(const PackedWeight& weight, const Place& place, float* out) {
    const Sections at = sections(weight);
    const std::int64_t of_panel = place.panel * weight.groups() * kPanel + place.lane;
    const auto* values = reinterpret_cast<const std::uint8_t*>(weight.blob + at.values + place.panel * at.panel_bytes);
    const auto* scales = reinterpret_cast<const std::uint16_t*>(weight.blob + at.scales) + of_panel;
    const auto* zeros = reinterpret_cast<const std::uint8_t*>(weight.blob + at.zeros) + of_panel;
    const auto* sub_scales = reinterpret_cast<const std::int8_t*>(weight.blob + at.sub_scales) +
                              place.panel * (weight.in_padded() / kSubScaled) * kPanel + place.lane;
    for (std::int64_t k = 0; k < weight.in; ++k) {
        const std::int64_t group = k / weight.group * kPanel;
        const int value = values[quad_byte(k / (2 * kQuad), place.lane, k)] >> nibble_shift(k) & 15;
        const int zero = weight.has_zeros ? zeros[group] : 8;
        const int sub_scale = weight.has_sub_scales ? sub_scales[k / kSubScaled * kPanel] : 1;
        out[k] = static_cast<float>((value - zero) * sub_scale) * from_half_bits(scales[group]);
    }
}

}  // namespace

void pack_int8(const PackedWeight& weight, const std::int8_t* values, const float* scales, std::byte* blob) {
    const Sections at = sections(weight);
    const StackedRows stacked({{reinterpret_cast<const std::byte*>(values), weight.out}},
                              static_cast<std::size_t>(weight.in));
    each_panel(weight, [&](std::int64_t panel) {
        const PanelRows of = rows_of(weight, panel);
        const std::int8_t* rows = values + of.first * weight.in;
        interleave(RowsOfPanel(weight, panel, stacked).data(), of.count, stacked.row_bytes(),
                   weight.in_padded() / kQuad, blob + at.values + panel * at.panel_bytes);
        auto* out_scales = reinterpret_cast<float*>(blob + at.scales) + panel * kPanel;
        auto* out_sums = reinterpret_cast<std::int32_t*>(blob + at.sums) + panel * kPanel;
        for (std::int64_t lane = 0; lane < kPanel; ++lane) {
            const std::int8_t* row = rows + lane * weight.in;
            out_scales[lane] = lane < of.count ? scales[of.first + lane] : 0.0f;
            out_sums[lane] = lane < of.count ? std::accumulate(row, row + weight.in, std::int32_t{0}) : 0;
        }
    });
}

namespace {

// Eight inputs as four bytes: the first four in the low nibbles, the others in the high ones.
std::uint32_t nibbles(std::uint64_t eight) {
    return static_cast<std::uint32_t>(eight) | static_cast<std::uint32_t>(eight >> 32) << 4;
}

// A row's inputs as nibbles; inputs that are missing at its end are 0.
void to_nibbles(const std::uint8_t* row, std::int64_t in, std::byte* out) {
    for (std::int64_t k = 0; k < in; k += 2 * kQuad, out += kQuad) {
        std::uint64_t eight = 0;
        std::memcpy(&eight, row + k, static_cast<std::size_t>(std::min(2 * kQuad, in - k)));
        const std::uint32_t word = nibbles(eight);
        std::memcpy(out, &word, kQuad);
    }
}

// out [columns][16] = rows `of` of from [out, columns]; zeros past the last row, and from `columns` on to `padded`.
template <class T>
void transpose(const PanelRows& of, const T* from, std::int64_t columns, std::int64_t padded, T* out) {
    for (std::int64_t c = 0; c < padded; ++c)
        for (std::int64_t lane = 0; lane < kPanel; ++lane)
            *out++ = lane < of.count && c < columns ? from[(of.first + lane) * columns + c] : T{};
}

}  // namespace

void pack_int4(const PackedWeight& weight, const std::uint8_t* values, const std::uint16_t* scales,
               const std::uint8_t* zeros, const std::int8_t* sub_scales, std::byte* blob) {
    const Sections at = sections(weight);
    const std::int64_t groups = (weight.in + weight.group - 1) / weight.group, padded = weight.groups();
    const std::int64_t parts = (weight.in + kSubScaled - 1) / kSubScaled, all_parts = weight.in_padded() / kSubScaled;
    const std::int64_t row_bytes = (weight.in + 2 * kQuad - 1) / (2 * kQuad) * kQuad;
    each_panel(weight, [&](std::int64_t panel) {
        const PanelRows of = rows_of(weight, panel);
        std::vector<std::byte> bytes(static_cast<std::size_t>(of.count * row_bytes));
        const std::byte* rows[kPanel];
        for (std::int64_t lane = 0; lane < of.count; ++lane) {
            rows[lane] = bytes.data() + lane * row_bytes;
            to_nibbles(values + (of.first + lane) * weight.in, weight.in, bytes.data() + lane * row_bytes);
        }
        interleave(rows, of.count, static_cast<std::size_t>(row_bytes), weight.in_padded() / (2 * kQuad),
                   blob + at.values + panel * at.panel_bytes);
        transpose(of, scales, groups, padded,
                  reinterpret_cast<std::uint16_t*>(blob + at.scales) + panel * padded * kPanel);
        if (weight.has_zeros)
            transpose(of, zeros, groups, padded,
                      reinterpret_cast<std::uint8_t*>(blob + at.zeros) + panel * padded * kPanel);
        if (weight.has_sub_scales)
            transpose(of, sub_scales, parts, all_parts,
                      reinterpret_cast<std::int8_t*>(blob + at.sub_scales) + panel * all_parts * kPanel);
    });
}

void unpack_integer(const PackedWeight& weight, const std::int64_t* ids, std::int64_t count, float* out) {
    parallel_pieces(count, [&](std::int64_t i) {
        const Place place = place_of(weight, ids[i]);
        if (weight.format == Format::int8) unpack_int8_row(weight, place, out + i * weight.in);
        else unpack_int4_row(weight, place, out + i * weight.in);
    });
}

}  // namespace kvarn
