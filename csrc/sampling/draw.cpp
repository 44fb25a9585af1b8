#include <algorithm>
#include <functional>
#include <numeric>
#include <stdexcept>

#include "core/parallel.h"
#include "sampling/sampling.h"
#include "sampling/select.h"
#include "sampling/weights.h"
#include "simd/simd.h"

namespace kvarn::KVARN_ISA {

namespace {

constexpr std::int64_t kPieceChunks = 64;  // chunks summed as one piece of work
constexpr std::int64_t kLikely = 48;       // chunks whose heaviest tokens are looked at first
constexpr float kNextThreshold = 1.0f / 256;
constexpr std::int64_t kNothing = -1;      // for a token where none weighs anything

// The first pass over a row.
struct ChunkSums {
    double* masses;  // [chunks] sum of each chunk's weights
    float* maxima;   // [chunks] largest weight of each chunk
};

ChunkSums take_sums(Carver& carver, std::int64_t chunks) {
    return {carver.take<double>(chunks), carver.take<float>(chunks)};
}

struct Filter {
    std::int64_t top_k;
    double top_p;
};

// What a thread needs to draw for a row.
struct Scratch {
    Candidates candidates, narrowed;
    float* maxima;  // [chunks]
};

Candidates take_candidates(Carver& carver, std::int64_t chunks) {
    return {carver.take<float>(chunks * kChunk), carver.take<std::int32_t>(chunks * kChunk)};
}

Scratch take_scratch(Carver& carver, std::int64_t chunks) {
    return {take_candidates(carver, chunks), take_candidates(carver, chunks), carver.take<float>(chunks)};
}

void sum_chunk(const RowWeights& row, std::int64_t chunk, const ChunkSums& out) {
    WideSum sum = wide_zero();
    F16 top = zero();
    row.visit(chunk, [&](F16 weights, std::int64_t) {
        sum = add_wide(sum, weights);
        top = max(top, weights);
    });
    out.masses[chunk] = reduce_add(sum);
    out.maxima[chunk] = reduce_max(top);
}

void sum_rows(const DrawCall& call, std::int64_t chunks, const ChunkSums& out) {
    const std::int64_t pieces = (chunks + kPieceChunks - 1) / kPieceChunks;
    parallel_pieces(call.count * pieces, [&](std::int64_t piece) {
        const std::int64_t index = piece / pieces, first = piece % pieces * kPieceChunks;
        const RowWeights row(call, index);
        const ChunkSums of_row{out.masses + index * chunks, out.maxima + index * chunks};
        for (std::int64_t chunk = first; chunk < std::min(chunks, first + kPieceChunks); ++chunk)
            sum_chunk(row, chunk, of_row);
    });
}

// Inverse CDF in the order of token ids, in two levels: the chunk by its sum, then the token within it.
std::int64_t draw_by_id(const RowWeights& row, const double* masses, double target) {
    std::int64_t chunk = 0;
    double before = 0.0;
    while (before + masses[chunk] <= target) before += masses[chunk++];
    std::int64_t drawn = -1;
    row.visit(chunk, [&](F16 weights, std::int64_t token) {
        float values[16];
        store(values, weights);
        for (int i = 0; i < 16 && drawn < 0; ++i) {
            before += values[i];
            if (before > target) drawn = token + i;
        }
    });
    return drawn;
}

// All tokens that weigh at least `threshold`; returns their share of the row.
Share gather(const RowWeights& row, const float* maxima, float threshold, Candidates& out) {
    out.count = 0;
    WideSum mass = wide_zero();
    for (std::int64_t chunk = 0; chunk < row.chunks(); ++chunk) {
        if (maxima[chunk] < threshold) continue;
        row.visit(chunk, [&](F16 weights, std::int64_t token) {
            const F16 heavy = where_less(weights, splat(threshold), zero(), weights);
            mass = add_wide(mass, heavy);
            out.append(heavy, lanes_at_least(weights, splat(threshold)), static_cast<std::int32_t>(token));
        });
    }
    out.close();
    return {out.count, reduce_add(mass)};
}

// A weight that at least `count` tokens reach, where there are so many chunks: the count-th largest of their maxima.
float first_threshold(const float* maxima, std::int64_t chunks, std::int64_t count, float* sorted) {
    if (count > chunks) return 1.0f;
    std::copy(maxima, maxima + chunks, sorted);
    std::nth_element(sorted, sorted + count - 1, sorted + chunks, std::greater<float>());
    return std::max(1.0f, sorted[count - 1]);
}

// Inverse CDF over what top-k and top-p keep, in the order (weight descending, token id ascending).
//
// The heaviest tokens are gathered first: all that reach a threshold, so that they are a prefix of the order, ties
// included. Where they are not all that the filters may keep, lower thresholds follow, at last 1: every token.
std::int64_t draw_filtered(const RowWeights& row, const Filter& filter, const ChunkSums& chunks, double total,
                           double uniform, Scratch& scratch) {
    const double mass_limit = filter.top_p * total;
    const auto enough = [&](Share kept) {
        return filter.top_k > 0 ? kept.tokens >= filter.top_k : kept.mass >= mass_limit;
    };
    float threshold = first_threshold(chunks.maxima, row.chunks(), std::max(kLikely, filter.top_k), scratch.maxima);
    Share kept = gather(row, chunks.maxima, threshold, scratch.candidates);
    while (!enough(kept) && threshold > 1.0f) {
        threshold = std::max(1.0f, threshold * kNextThreshold);
        kept = gather(row, chunks.maxima, threshold, scratch.candidates);
    }
    const auto find = [&](auto&& reached) {
        return find_place(scratch.candidates, threshold, row.heaviest(), scratch.narrowed, reached);
    };
    if (filter.top_k > 0 && kept.tokens > filter.top_k)
        kept = find([&](Share through) { return through.tokens >= filter.top_k; }).through;
    const double limit = filter.top_k > 0 ? filter.top_p * kept.mass : mass_limit;
    if (kept.mass > limit) kept = find([&](Share through) { return through.mass >= limit; }).through;
    const double target = uniform * kept.mass;
    return find([&](Share through) { return through.mass > target; }).id;
}

std::int64_t draw_row(const DrawCall& call, std::int64_t index, const ChunkSums& chunks, Scratch scratch) {
    const RowWeights row(call, index);
    const Filter filter{call.top_k[index], call.top_p[index]};
    const double total = std::reduce(chunks.masses, chunks.masses + row.chunks());
    if (!(total > 0.0)) return kNothing;
    const double uniform = call.uniforms[index];
    return filter.top_k > 0 || filter.top_p < 1.0 ? draw_filtered(row, filter, chunks, total, uniform, scratch)
                                                  : draw_by_id(row, chunks.masses, uniform * total);
}

}  // namespace

void draw_tokens(const DrawCall& call) {
    const std::int64_t chunks = (call.vocab + kChunk - 1) / kChunk;
    Carver sums_size, scratch_size;
    take_sums(sums_size, call.count * chunks);
    take_scratch(scratch_size, chunks);
    std::byte* memory = call.workspace->reserve(
        sums_size.used() + static_cast<std::size_t>(omp_get_max_threads()) * scratch_size.used());
    Carver carver(memory);
    const ChunkSums sums = take_sums(carver, call.count * chunks);
    sum_rows(call, chunks, sums);
    parallel_pieces(call.count, [&](std::int64_t index) {
        const auto thread = static_cast<std::size_t>(omp_get_thread_num());
        Carver own(memory + sums_size.used() + thread * scratch_size.used());
        const ChunkSums of_row{sums.masses + index * chunks, sums.maxima + index * chunks};
        call.tokens[index] = draw_row(call, index, of_row, take_scratch(own, chunks));
    });
    if (std::find(call.tokens, call.tokens + call.count, kNothing) != call.tokens + call.count)
        throw std::invalid_argument("a row to draw from holds NaN, or its largest logit is not the one given");
}

void token_weights(const DrawCall& call, float* out) {
    for (std::int64_t index = 0; index < call.count; ++index) {
        const RowWeights row(call, index);
        for (std::int64_t chunk = 0; chunk < row.chunks(); ++chunk)
            row.visit(chunk, [&](F16 weights, std::int64_t token) {
                const std::int64_t lanes = std::min<std::int64_t>(16, call.vocab - token);
                store_first(out + index * call.vocab + token, weights, static_cast<int>(lanes));
            });
    }
}

}  // namespace kvarn::KVARN_ISA
