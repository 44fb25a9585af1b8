#include <bit>
#include <cstdint>
#include <cstring>

#include "core/parallel.h"
#include "linear/pack.h"

namespace kvarn {

namespace {

// Where byte `k % 4` of input k's quad lies for one output.
std::int64_t quad_byte(std::int64_t quad, std::int64_t lane, std::int64_t k) {
    return (quad * kPanel + lane) * kQuad + k % kQuad;
}

int nibble_shift(std::int64_t k) { return k / kQuad % 2 ? 4 : 0; }

float from_half_bits(std::uint16_t half) {
    const float magnitude = (half & 0x7c00) == 0x7c00 ? std::bit_cast<float>((half & 0x7fffu) << 13 | 0x7f800000u)
                            : (half & 0x7c00)         ? std::bit_cast<float>(((half & 0x7fffu) << 13) + (112u << 23))
                                                      : static_cast<float>(half & 0x3ff) * 0x1p-24f;
    return half & 0x8000 ? -magnitude : magnitude;
}

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
    for (std::int64_t k = 0; k < weight.in; ++k) {
        const std::int64_t group = k / weight.group * kPanel;
        const int value = values[quad_byte(k / (2 * kQuad), place.lane, k)] >> nibble_shift(k) & 15;
        const int zero = weight.has_zeros ? zeros[group] : 8;
        out[k] = static_cast<float>(value - zero) * from_half_bits(scales[group]);
    }
}

}  // namespace

void pack_int8(const PackedWeight& weight, const std::int8_t* values, const float* scales, std::byte* blob) {
    const Sections at = sections(weight);
    std::memset(blob, 0, at.size);
    parallel_pieces(weight.panels(), [&](std::int64_t panel) {
        auto* out = reinterpret_cast<std::int8_t*>(blob + at.values + panel * at.panel_bytes);
        auto* out_scales = reinterpret_cast<float*>(blob + at.scales) + panel * kPanel;
        auto* out_sums = reinterpret_cast<std::int32_t*>(blob + at.sums) + panel * kPanel;
        const PanelRows rows = rows_of(weight, panel);
        for (std::int64_t lane = 0; lane < rows.count; ++lane) {
            const std::int8_t* row = values + (rows.first + lane) * weight.in;
            for (std::int64_t k = 0; k < weight.in; ++k) {
                out[quad_byte(k / kQuad, lane, k)] = row[k];
                out_sums[lane] += row[k];
            }
            out_scales[lane] = scales[rows.first + lane];
        }
    });
}

void pack_int4(const PackedWeight& weight, const std::uint8_t* values, const std::uint16_t* scales,
               const std::uint8_t* zeros, std::byte* blob) {
    const Sections at = sections(weight);
    const std::int64_t groups = (weight.in + weight.group - 1) / weight.group;
    std::memset(blob, 0, at.size);
    parallel_pieces(weight.panels(), [&](std::int64_t panel) {
        auto* out = reinterpret_cast<std::uint8_t*>(blob + at.values + panel * at.panel_bytes);
        auto* out_scales = reinterpret_cast<std::uint16_t*>(blob + at.scales) + panel * weight.groups() * kPanel;
        auto* out_zeros = reinterpret_cast<std::uint8_t*>(blob + at.zeros) + panel * weight.groups() * kPanel;
        const PanelRows rows = rows_of(weight, panel);
        for (std::int64_t lane = 0; lane < rows.count; ++lane) {
            const std::int64_t row = rows.first + lane;
            for (std::int64_t k = 0; k < weight.in; ++k) {
                std::uint8_t& both = out[quad_byte(k / (2 * kQuad), lane, k)];
                both = static_cast<std::uint8_t>(both | values[row * weight.in + k] << nibble_shift(k));
            }
            for (std::int64_t g = 0; g < groups; ++g) {
                out_scales[g * kPanel + lane] = scales[row * groups + g];
                if (weight.has_zeros) out_zeros[g * kPanel + lane] = zeros[row * groups + g];
            }
        }
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
