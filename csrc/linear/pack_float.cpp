#include <bit>

#include "linear/interleave.h"
#include "linear/pack.h"

namespace kvarn {

void pack_float(const PackedWeight& weight, const StackedRows& rows, std::byte* blob) {
    const Sections at = sections(weight);
    const auto words = static_cast<std::int64_t>(at.panel_bytes / 64);
    each_panel(weight, [&](std::int64_t panel) {
        const RowsOfPanel of(weight, panel, rows);
        interleave(of.data(), of.count(), rows.row_bytes(), words,
                   blob + at.values + static_cast<std::size_t>(panel) * at.panel_bytes);
    });
}

void unpack_float(const PackedWeight& weight, const std::int64_t* ids, std::int64_t count, float* out) {
    const Sections at = sections(weight);
    const bool wide = weight.format == Format::f32;
    parallel_pieces(count, [&](std::int64_t index) {
        const Place place = place_of(weight, ids[index]);
        const std::byte* lane = weight.blob + at.values + static_cast<std::size_t>(place.panel) * at.panel_bytes +
                                place.lane * 4;
        float* row = out + index * weight.in;
        for (std::int64_t k = 0; k < weight.in; ++k) {
            std::uint32_t word;
            std::memcpy(&word, lane + (wide ? k : k / 2) * 64, 4);
            if (!wide) word = k % 2 ? word & 0xffff0000u : word << 16;
            row[k] = std::bit_cast<float>(word);
        }
    });
}

}  // namespace kvarn
