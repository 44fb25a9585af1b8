#include "linear/linear.h"

namespace kvarn {

namespace {

constexpr std::size_t round_up(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

std::size_t bits_per_value(Format format) {
    switch (format) {
        case Format::f32: return 32;
        case Format::bf16: return 16;
        case Format::int8: return 8;
        case Format::int4: return 4;
    }
    return 0;
}

}  // namespace

Sections sections(const PackedWeight& weight) {
    const auto panels = static_cast<std::size_t>(weight.panels());
    const auto groups = static_cast<std::size_t>(weight.groups());
    Sections at{};
    const auto take = [&at](std::size_t bytes) {
        const std::size_t begin = at.size;
        at.size += round_up(bytes);
        return begin;
    };
    at.panel_bytes = static_cast<std::size_t>(weight.in_padded()) * kPanel * bits_per_value(weight.format) / 8;
    at.values = take(panels * at.panel_bytes);
    if (weight.format == Format::int8) {
        at.scales = take(panels * kPanel * sizeof(float));
        at.sums = take(panels * kPanel * sizeof(std::int32_t));
    } else if (weight.format == Format::int4) {
        at.scales = take(panels * groups * kPanel * sizeof(std::uint16_t));
        at.zeros = take(weight.has_zeros ? panels * groups * kPanel : 0);
        const auto sub_scales = static_cast<std::size_t>(weight.in_padded() / kSubScaled) * kPanel;
        at.sub_scales = take(weight.has_sub_scales ? panels * sub_scales : 0);
    }
    return at;
}

}  // namespace kvarn
