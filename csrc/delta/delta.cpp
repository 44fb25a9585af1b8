#include "delta/delta.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/parallel.h"
#include "elementwise/norm_row.h"
#include "simd/simd.h"

namespace kvarn::KVARN_ISA {

namespace {

constexpr float kQueryKeyEps = 1e-6f;
constexpr int kGroups = 4;                        // of sixteen columns, computed as one piece of work
constexpr std::int64_t kColumns = 16 * kGroups;

int lanes_from(std::int64_t i, std::int64_t size) { return static_cast<int>(std::min<std::int64_t>(16, size - i)); }

// One layer's work on one step. Scratch memory: what the convolution gives for each token, and each head's two rates.
class DeltaStep {
  public:
    explicit DeltaStep(const DeltaCall& call) : call_(call), shape_(call.shape) {
        Carver count;
        carve(count);
        Carver parts(call.workspace->reserve(count.used()));
        carve(parts);
    }

    void run() {
        parallel_pieces(call_.tokens, [&](std::int64_t token) { prepare(token); });
        const std::int64_t parts = (shape_.value_dim + kColumns - 1) / kColumns, heads = shape_.value_heads;
        parallel_pieces(call_.sequences * heads * parts, [&](std::int64_t piece) {
            advance(piece / (heads * parts), piece / parts % heads, piece % parts * kColumns);
        });
        parallel_pieces(call_.tokens, [&](std::int64_t token) { finish(token); });
        parallel_pieces(call_.sequences, [&](std::int64_t sequence) { keep_inputs(sequence); });
    }

  private:
    void carve(Carver& memory) {
        mixed_ = memory.take<float>(call_.tokens * shape_.channels());
        kept_ = memory.take<float>(call_.tokens * shape_.value_heads);
        overwritten_ = memory.take<float>(call_.tokens * shape_.value_heads);
    }

    std::int64_t first_token(std::int64_t sequence) const { return call_.query_starts[sequence]; }
    std::int64_t tokens_of(std::int64_t sequence) const {
        return call_.query_starts[sequence + 1] - call_.query_starts[sequence];
    }

    float* kept_inputs(std::int64_t place) const {
        return call_.inputs + place * (shape_.window - 1) * shape_.channels();
    }

    // What the convolution takes of a sequence's token `offset` of this step, or of one before it where that is negative.
    const float* input(std::int64_t sequence, std::int64_t offset) const {
        if (offset < 0)
            return kept_inputs(call_.places[sequence]) + (shape_.window - 1 + offset) * shape_.channels();
        return call_.projected + (first_token(sequence) + offset) * (shape_.channels() + shape_.values());
    }

    // Convolution, SiLU, lengths of queries and keys, and the rates of a token.
    void prepare(std::int64_t token) {
        const std::int32_t* ends = call_.query_starts + 1;
        const std::int64_t sequence = std::upper_bound(ends, ends + call_.sequences, token) - ends;
        const std::int64_t offset = token - first_token(sequence), channels = shape_.channels();
        float* mixed = mixed_ + token * channels;
        for (std::int64_t c = 0; c < channels; c += 16) {
            const int n = lanes_from(c, channels);
            F16 sum = zero();
            for (std::int64_t k = 0; k < shape_.window; ++k) {
                const float* taken = input(sequence, offset - (shape_.window - 1) + k);
                sum = fma(load_first(taken + c, n), load_first(call_.convolution + k * channels + c, n), sum);
            }
            store_first(mixed + c, silu(sum), n);
        }
        const float scale = 1.0f / std::sqrt(static_cast<float>(shape_.key_dim));
        for (std::int64_t head = 0; head < shape_.key_heads; ++head) {
            to_length_one(mixed + head * shape_.key_dim, scale);
            to_length_one(mixed + shape_.keys() + head * shape_.key_dim, 1.0f);
        }
        const float* rates = call_.rates + token * 2 * shape_.value_heads;
        for (std::int64_t head = 0; head < shape_.value_heads; ++head) {
            overwritten_[token * shape_.value_heads + head] = 1.0f / (1.0f + std::exp(-rates[head]));
            const float x = rates[shape_.value_heads + head] + call_.decay_bias[head];
            const float softplus = x > 20.0f ? x : std::log1p(std::exp(x));
            kept_[token * shape_.value_heads + head] = std::exp(call_.decay[head] * softplus);
        }
    }

    // Squares are summed as those of a norm are: in sixteen chains, joined in a fixed tree.
    void to_length_one(float* x, float scale) const {
        F16 sum = zero();
        for (std::int64_t i = 0; i < shape_.key_dim; i += 16) {
            const F16 v = load_first(x + i, lanes_from(i, shape_.key_dim));
            sum = fma(v, v, sum);
        }
        const F16 factor = splat(scale / std::sqrt(reduce_add(sum) + kQueryKeyEps));
        for (std::int64_t i = 0; i < shape_.key_dim; i += 16) {
            const int n = lanes_from(i, shape_.key_dim);
            store_first(x + i, mul(load_first(x + i, n), factor), n);
        }
    }

    // Some columns of one head's state, through all of a sequence's tokens.
    void advance(std::int64_t sequence, std::int64_t head, std::int64_t column) {
        const std::int64_t count = tokens_of(sequence), key_head = head / (shape_.value_heads / shape_.key_heads);
        const std::int64_t width = std::min(kColumns, shape_.value_dim - column);
        float* state = state_of(call_.places[sequence], head) + column;
        const DeltaSave* save = std::find_if(call_.saves, call_.saves + call_.num_saves,
                                             [&](const DeltaSave& each) { return each.sequence == sequence; });
        for (std::int64_t offset = 0; offset < count; ++offset) {
            const std::int64_t token = first_token(sequence) + offset;
            const float* mixed = mixed_ + token * shape_.channels();
            const float* query = mixed + key_head * shape_.key_dim;
            const std::int64_t value = head * shape_.value_dim + column;
            const Token now{query, query + shape_.keys(), mixed + 2 * shape_.keys() + value,
                            kept_[token * shape_.value_heads + head], overwritten_[token * shape_.value_heads + head],
                            call_.out + token * shape_.values() + value};
            if (width == kColumns) {
                take<kGroups>(state, now, 16);
            } else {
                for (std::int64_t c = 0; c < width; c += 16) take<1>(state + c, now.from(c), lanes_from(c, width));
            }
            const DeltaSave* end = call_.saves + call_.num_saves;
            if (save != end && save->sequence == sequence && save->tokens == offset + 1) {
                float* copy = state_of(save->place, head) + column;
                for (std::int64_t i = 0; i < shape_.key_dim; ++i)
                    std::memcpy(copy + i * shape_.value_dim, state + i * shape_.value_dim, width * sizeof(float));
                ++save;
            }
        }
    }

    struct Token {
        const float *query, *key, *value;
        float kept, overwritten;
        float* out;
        Token from(std::int64_t column) const { return {query, key, value + column, kept, overwritten, out + column}; }
    };

    // One token in so many groups of sixteen columns, the last of which has `lanes`.
    template <int groups>
    void take(float* state, const Token& token, int lanes) const {
        const std::int64_t rows = shape_.key_dim, stride = shape_.value_dim;
        const F16 kept = splat(token.kept);
        F16 sums[groups], change[groups];
        for (int g = 0; g < groups; ++g) sums[g] = zero();
        for (std::int64_t i = 0; i < rows; ++i) {
            const F16 key = splat(token.key[i]);
            for (int g = 0; g < groups; ++g) {
                float* place = state + i * stride + 16 * g;
                const F16 faded = mul(part(place, lanes), kept);
                put(place, faded, lanes);
                sums[g] = fma(faded, key, sums[g]);
            }
        }
        for (int g = 0; g < groups; ++g) {
            change[g] = mul(sub(part(token.value + 16 * g, lanes), sums[g]), splat(token.overwritten));
            sums[g] = zero();
        }
        for (std::int64_t i = 0; i < rows; ++i) {
            const F16 key = splat(token.key[i]), query = splat(token.query[i]);
            for (int g = 0; g < groups; ++g) {
                float* place = state + i * stride + 16 * g;
                const F16 changed = fma(key, change[g], part(place, lanes));
                put(place, changed, lanes);
                sums[g] = fma(changed, query, sums[g]);
            }
        }
        for (int g = 0; g < groups; ++g) put(token.out + 16 * g, sums[g], lanes);
    }

    static F16 part(const float* p, int lanes) { return lanes == 16 ? load(p) : load_first(p, lanes); }
    static void put(float* p, F16 a, int lanes) {
        if (lanes == 16) {
            store(p, a);
        } else {
            store_first(p, a, lanes);
        }
    }

    float* state_of(std::int64_t place, std::int64_t head) const {
        return call_.matrices + (place * shape_.value_heads + head) * shape_.key_dim * shape_.value_dim;
    }

    // Norm and gate of a token's outputs.
    void finish(std::int64_t token) const {
        const float* gates = call_.projected + token * (shape_.channels() + shape_.values()) + shape_.channels();
        for (std::int64_t head = 0; head < shape_.value_heads; ++head) {
            float* out = call_.out + token * shape_.values() + head * shape_.value_dim;
            const F16 factor = splat(rms_factor(out, shape_.value_dim, call_.eps));
            for (std::int64_t i = 0; i < shape_.value_dim; i += 16) {
                const int n = lanes_from(i, shape_.value_dim);
                const F16 normed = mul(mul(load_first(out + i, n), factor), load_first(call_.norm + i, n));
                store_first(out + i, mul(normed, silu(load_first(gates + head * shape_.value_dim + i, n))), n);
            }
        }
    }

    // The last inputs of the convolution, first where copies are kept, then at the end of the row.
    void keep_inputs(std::int64_t sequence) const {
        for (std::int64_t i = 0; i < call_.num_saves; ++i)
            if (call_.saves[i].sequence == sequence)
                copy_inputs(sequence, call_.saves[i].tokens, kept_inputs(call_.saves[i].place));
        copy_inputs(sequence, tokens_of(sequence), kept_inputs(call_.places[sequence]));
    }

    // Those after `count` tokens of the row. The target may be the sequence's own: what is read of it lies behind what was
    // written.
    void copy_inputs(std::int64_t sequence, std::int64_t count, float* target) const {
        for (std::int64_t k = 0; k < shape_.window - 1; ++k)
            std::memcpy(target + k * shape_.channels(), input(sequence, count - (shape_.window - 1) + k),
                        shape_.channels() * sizeof(float));
    }

    const DeltaCall& call_;
    const DeltaShape& shape_;
    float* mixed_ = nullptr;
    float* kept_ = nullptr;          // by which a head's state is multiplied
    float* overwritten_ = nullptr;   // the share of what the state says of a key that the value replaces
};

}  // namespace

void delta_rule(const DeltaCall& call) { DeltaStep(call).run(); }

}  // namespace kvarn::KVARN_ISA
