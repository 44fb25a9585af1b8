// Plain weights to packed int8 or int4: what kvarn/kernels/torch/quantize.py defines, as pack.h lays it out.
//
// The sixteen rows of a panel are quantised side by side, a lane each, so that no sum crosses lanes and what is computed
// lies as it is packed. 128 inputs of them are brought into lanes at a time.
#include <algorithm>
#include <cstring>
#include <limits>

#include "core/half.h"
#include "linear/interleave.h"
#include "linear/linear.h"
#include "linear/pack.h"
#include "simd/simd.h"

namespace kvarn::KVARN_ISA {

namespace {

constexpr float kPeaks[] = {-8.0f, -7.3f, -8.7f};    // what the largest weight of 32 is divided to
constexpr float kLargestSubScale = 15.0f;
constexpr std::int64_t kParts = kScaleInputs / kSubScaled;

F16 magnitude(F16 x) { return max(x, sub(zero(), x)); }
F16 clamped(F16 x, float low, float high) { return max(min(x, splat(high)), splat(low)); }
// 1 / x; 0 where that is infinite.
F16 inverse(F16 x) {
    const F16 result = div(splat(1.0f), x);
    return where_less(splat(std::numeric_limits<float>::max()), magnitude(result), zero(), result);
}

// The number of largest magnitude, with its sign, of all that were added; NaN where one was not finite.
class Largest {
  public:
    void include(F16 x) {
        high_ = max(high_, x);
        low_ = max(low_, sub(zero(), x));
        not_finite_ = add(not_finite_, mul(x, zero()));
    }
    F16 get() const { return add(where_less(high_, low_, sub(zero(), low_), high_), not_finite_); }

  private:
    F16 high_ = splat(-std::numeric_limits<float>::infinity()), low_ = high_;
    F16 not_finite_ = zero();    // 0 or NaN
};

// Some inputs of a panel's rows: x[input][row], zeros past the last input and the last row.
struct Block {
    alignas(64) float x[kScaleInputs][kPanel];

    void read(const RowsOfPanel& rows, bool is_bf16, std::int64_t first, std::int64_t count) {
        const std::byte* from[kPanel];
        const std::size_t size = is_bf16 ? 2 : 4;
        for (std::int64_t lane = 0; lane < rows.count(); ++lane) from[lane] = rows[lane] + first * size;
        if (is_bf16) {
            alignas(64) std::byte pairs[kScaleInputs / 2 * 64];
            interleave(from, rows.count(), count * size, kScaleInputs / 2, pairs);
            for (std::int64_t k = 0; k < kScaleInputs; k += 2) {
                store(x[k], bf16_even(pairs + k / 2 * 64));
                store(x[k + 1], bf16_odd(pairs + k / 2 * 64));
            }
        } else {
            interleave(from, rows.count(), count * size, kScaleInputs, reinterpret_cast<std::byte*>(x));
        }
    }
};

// line [16][4]: whole numbers of [-128, 255] as bytes.
void store_quads(std::byte* line, const F16 (&bytes)[kQuad]) {
    alignas(64) float numbers[kQuad][kPanel];
    for (std::int64_t j = 0; j < kQuad; ++j) store(numbers[j], bytes[j]);
    std::uint32_t words[kPanel];
    for (std::int64_t lane = 0; lane < kPanel; ++lane) {
        const auto byte = [&](std::int64_t j) {
            return static_cast<std::uint32_t>(static_cast<std::int32_t>(numbers[j][lane])) & 255u;
        };
        words[lane] = byte(0) | byte(1) << 8 | byte(2) << 16 | byte(3) << 24;
    }
    std::memcpy(line, words, sizeof(words));
}

// lines [count] of 16 numbers: those of lanes past `used` become zero.
template <class T>
void clear_lanes(std::byte* lines, std::int64_t count, std::int64_t used) {
    if (used == kPanel) return;
    for (std::int64_t i = 0; i < count; ++i)
        std::memset(lines + (i * kPanel + used) * sizeof(T), 0, (kPanel - used) * sizeof(T));
}

struct Panel {
    const PackedWeight& weight;
    const Sections& at;
    std::int64_t number;
    RowsOfPanel rows;
    bool is_bf16;
    std::byte* blob;

    // A section that has lines [lines][16] of T for each panel.
    template <class T>
    T* section(std::size_t offset, std::int64_t lines) const {
        return reinterpret_cast<T*>(blob + offset) + number * lines * kPanel;
    }
    std::byte* values() const { return blob + at.values + number * at.panel_bytes; }
    // Inputs of the block that begins with `first`, which must be an input, not padding.
    std::int64_t inputs_from(std::int64_t first) const { return std::min(kScaleInputs, weight.in - first); }
};

void quantise_int8(const Panel& panel) {
    const std::int64_t in = panel.weight.in;
    Block block;
    Largest largest;
    for (std::int64_t first = 0; first < in; first += kScaleInputs) {
        const std::int64_t count = panel.inputs_from(first);
        block.read(panel.rows, panel.is_bf16, first, count);
        for (std::int64_t k = 0; k < count; ++k) largest.include(load(block.x[k]));
    }
    const F16 peak = magnitude(largest.get()), factor = mul(splat(127.0f), inverse(peak));
    F16 sum = zero();    // exact: see MAX_INT8_INPUTS
    std::byte* line = panel.values();
    for (std::int64_t first = 0; first < panel.weight.in_padded(); first += kScaleInputs) {
        block.read(panel.rows, panel.is_bf16, first, panel.inputs_from(first));
        const std::int64_t end = std::min(kScaleInputs, panel.weight.in_padded() - first);
        for (std::int64_t k = 0; k < end; k += kQuad, line += 64) {
            F16 bytes[kQuad];
            for (std::int64_t j = 0; j < kQuad; ++j) {
                const bool is_padding = first + k + j >= in;    // the factor may be infinite
                bytes[j] = is_padding ? zero() : clamped(round(mul(load(block.x[k + j]), factor)), -127.0f, 127.0f);
                sum = add(sum, bytes[j]);
            }
            store_quads(line, bytes);
        }
    }
    auto* scales = panel.section<float>(panel.at.scales, 1);
    store(scales, div(peak, splat(127.0f)));
    alignas(64) float sums[kPanel];
    store(sums, sum);
    std::copy_n(sums, kPanel, panel.section<std::int32_t>(panel.at.sums, 1));
}

// Adds by halves: half of the numbers to the other half, until one is left. Here those from `k` on, `kStep` apart.
template <std::int64_t kStep, class Number>
F16 sum_by_halves(std::int64_t k, const Number& number) {
    if constexpr (kStep == kSubScaled) return number(k);
    else return add(sum_by_halves<2 * kStep>(k, number), sum_by_halves<2 * kStep>(k + kStep, number));
}

// The scale of 32 inputs, x [32][16], that loses least.
F16 best_scale(const float (*x)[kPanel]) {
    Largest largest;
    for (std::int64_t k = 0; k < kSubScaled; ++k) largest.include(load(x[k]));
    const F16 inverse_peak = inverse(largest.get());
    F16 best = mul(inverse_peak, zero()), best_gain = zero();    // NaN where the peak is
    for (const float peak : kPeaks) {
        const F16 factor = mul(splat(peak), inverse_peak);
        F16 squares = zero();    // whole numbers: exact in any order
        const F16 product = sum_by_halves<1>(0, [&](std::int64_t k) {
            const F16 number = load(x[k]), code = clamped(round(mul(number, factor)), -8.0f, 7.0f);
            squares = add(squares, mul(code, code));
            return mul(number, code);
        });
        const F16 scale = mul(product, inverse(squares)), gain = mul(product, scale);
        best = where_less(best_gain, gain, scale, best);
        best_gain = where_less(best_gain, gain, gain, best_gain);
    }
    return best;
}

// scale [16] in half precision = x / 15; returns it as it is stored.
F16 store_scale(F16 x, std::uint16_t* scale) {
    alignas(64) float numbers[kPanel];
    store(numbers, div(x, splat(kLargestSubScale)));
    for (std::int64_t lane = 0; lane < kPanel; ++lane) {
        scale[lane] = to_half_bits(numbers[lane]);
        numbers[lane] = from_half_bits(scale[lane]);
    }
    return load(numbers);
}

void quantise_int4(const Panel& panel) {
    const std::int64_t in = panel.weight.in, groups = panel.weight.groups();
    const std::int64_t parts = (in + kSubScaled - 1) / kSubScaled, lines = panel.weight.in_padded() / (2 * kQuad);
    auto* scales = panel.section<std::uint16_t>(panel.at.scales, groups);
    auto* sub_scales = panel.section<std::int8_t>(panel.at.sub_scales, panel.weight.in_padded() / kSubScaled);
    std::memset(sub_scales, 0, static_cast<std::size_t>(panel.weight.in_padded() / kSubScaled * kPanel));
    std::byte* line = panel.values();
    Block block;
    for (std::int64_t group = 0; group < groups; ++group) {
        const std::int64_t first = group * kScaleInputs;
        block.read(panel.rows, panel.is_bf16, first, panel.inputs_from(first));
        F16 wanted[kParts];
        Largest largest;
        for (std::int64_t i = 0; i < kParts; ++i) largest.include(wanted[i] = best_scale(block.x + i * kSubScaled));
        const F16 scale = store_scale(magnitude(largest.get()), scales + group * kPanel), units = inverse(scale);
        for (std::int64_t i = 0; i < kParts; ++i) {
            const F16 rounded = clamped(round(mul(wanted[i], units)), -kLargestSubScale, kLargestSubScale);
            const F16 sub_scale = where_less(magnitude(rounded), splat(0.5f), splat(1.0f), rounded);
            const std::int64_t part = group * kParts + i;
            if (part < parts) store_int8(sub_scales + part * kPanel, sub_scale);
            const F16 factor = inverse(mul(sub_scale, scale));
            const auto code = [&](std::int64_t k) {    // of an input of the group; 0 past the last one
                if (first + k >= in) return zero();
                return add(clamped(round(mul(load(block.x[k]), factor)), -8.0f, 7.0f), splat(8.0f));
            };
            const std::int64_t end = std::min((i + 1) * kSubScaled, panel.weight.in_padded() - first);
            for (std::int64_t k = i * kSubScaled; k < end; k += 2 * kQuad, line += 64) {
                F16 bytes[kQuad];
                for (std::int64_t j = 0; j < kQuad; ++j)
                    bytes[j] = add(code(k + j), mul(code(k + kQuad + j), splat(16.0f)));
                store_quads(line, bytes);
            }
        }
    }
    const std::int64_t used = panel.rows.count();
    clear_lanes<std::uint32_t>(panel.values(), lines, used);
    clear_lanes<std::int8_t>(reinterpret_cast<std::byte*>(sub_scales), parts, used);
}

}  // namespace

void pack_quantised(const PackedWeight& weight, const StackedRows& rows, bool is_bf16, std::byte* blob) {
    const Sections at = sections(weight);
    each_panel(weight, [&](std::int64_t number) {
        const Panel panel{weight, at, number, RowsOfPanel(weight, number, rows), is_bf16, blob};
        if (weight.format == Format::int8) quantise_int8(panel);
        else quantise_int4(panel);
    });
}

}  // namespace kvarn::KVARN_ISA
