#include "attention/latent.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/parallel.h"
#include "simd/simd.h"

namespace kvarn::KVARN_ISA {

namespace {

constexpr int kHeads = 8;    // that one piece of work answers

int lanes_from(std::int64_t i, std::int64_t size) { return static_cast<int>(std::min<std::int64_t>(16, size - i)); }

std::int64_t padded(std::int64_t size) { return (size + 15) / 16 * 16; }

// Some heads of one token.
class HeadsOfToken {
  public:
    HeadsOfToken(const LatentCall& call, std::int64_t token, std::int64_t first_head)
        : call_(call), stride_(padded(call.size)), values_(padded(call.value_size)), first_(token * call.heads + first_head),
          heads_(static_cast<int>(std::min<std::int64_t>(kHeads, call.heads - first_head))) {
        for (int h = 0; h < heads_; ++h) {
            const float* query = call.queries + (first_ + h) * call.size;
            for (std::int64_t i = 0; i < call.size; i += 16)
                store(queries_ + h * stride_ + i, mul(load_first(query + i, lanes_from(i, call.size)), splat(call.scale)));
            std::fill_n(sums_ + h * values_, values_, 0.0f);
            peaks_[h] = -INFINITY;
            totals_[h] = 0.0f;
        }
    }

    // The first `count` rows of a block.
    void read(std::int32_t block, int count) {
        widen(call_.cache, std::int64_t{block} * kBlock * call_.size, count);
        for (int h = 0; h < heads_; ++h) add_block(h, count);
    }

    void finish() const {
        for (int h = 0; h < heads_; ++h) {
            const F16 factor = splat(1.0f / totals_[h]);
            float* out = call_.out + (first_ + h) * call_.value_size;
            for (std::int64_t i = 0; i < call_.value_size; i += 16)
                store_first(out + i, mul(load(sums_ + h * values_ + i), factor), lanes_from(i, call_.value_size));
        }
    }

  private:
    // Rows of the cache as floats, padded with zeros.
    void widen(const std::byte* cache, std::int64_t first, int count) {
        for (int p = 0; p < count; ++p) {
            float* row = rows_ + p * stride_;
            const std::int64_t place = first + p * call_.size;
            if (call_.rounded) {
                const std::uint16_t* from = reinterpret_cast<const std::uint16_t*>(cache) + place;
                for (std::int64_t i = 0; i < call_.size; ++i) {
                    const std::uint32_t bits = std::uint32_t{from[i]} << 16;
                    std::memcpy(row + i, &bits, sizeof bits);
                }
            } else {
                std::memcpy(row, cache + place * sizeof(float), call_.size * sizeof(float));
            }
            std::fill(row + call_.size, row + stride_, 0.0f);
        }
    }

    void add_block(int head, int count) {
        alignas(64) float weights[kBlock];
        std::fill_n(weights, kBlock, -INFINITY);
        for (int p = 0; p < count; ++p) {
            F16 sum = zero();
            for (std::int64_t i = 0; i < stride_; i += 16)
                sum = fma(load(queries_ + head * stride_ + i), load(rows_ + p * stride_ + i), sum);
            weights[p] = reduce_add(sum);
        }
        const float peak = std::max(peaks_[head], reduce_max(load(weights)));
        alignas(64) float keeps[kBlock];
        store(keeps, exp(splat(peaks_[head] - peak)));
        const F16 taken = exp(sub(load(weights), splat(peak)));
        store(weights, taken);
        peaks_[head] = peak;
        totals_[head] = totals_[head] * keeps[0] + reduce_add(taken);
        for (std::int64_t i = 0; i < values_; i += 16) {
            F16 sum = mul(load(sums_ + head * values_ + i), splat(keeps[0]));
            for (int p = 0; p < count; ++p) sum = fma(splat(weights[p]), load(rows_ + p * stride_ + i), sum);
            store(sums_ + head * values_ + i, sum);
        }
    }

    const LatentCall& call_;
    const std::int64_t stride_, values_, first_;
    const int heads_;
    alignas(64) float queries_[kHeads * kMaxLatent];
    alignas(64) float sums_[kHeads * kMaxLatent];
    alignas(64) float rows_[kBlock * kMaxLatent];
    float peaks_[kHeads], totals_[kHeads];
};

void attend_token(const LatentCall& call, std::int64_t sequence, std::int64_t token, std::int64_t first_head) {
    const StepTables& step = call.metadata->step;
    const std::int32_t* blocks = step.block_tables + sequence * step.table_stride;
    const std::int64_t end = call.metadata->reads[token].end;
    HeadsOfToken heads(call, token, first_head);
    for (std::int64_t begin = 0; begin < end; begin += kBlock)
        heads.read(blocks[begin / kBlock], static_cast<int>(std::min(kBlock, end - begin)));
    heads.finish();
}

}  // namespace

void latent_attention(const LatentCall& call) {
    const StepTables& step = call.metadata->step;
    const std::int64_t parts = (call.heads + kHeads - 1) / kHeads;
    parallel_pieces(step.tokens * parts, [&](std::int64_t piece) {
        const std::int64_t token = piece / parts;
        const std::int32_t* ends = step.query_starts + 1;
        const std::int64_t sequence = std::upper_bound(ends, ends + step.sequences, token) - ends;
        attend_token(call, sequence, token, piece % parts * kHeads);
    });
}

}  // namespace kvarn::KVARN_ISA
