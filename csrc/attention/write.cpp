#include "attention/write.h"

#include "attention/kv_block.h"
#include "core/parallel.h"
#include "elementwise/norm_row.h"
#include "simd/simd.h"

namespace kvarn::KVARN_ISA {

namespace {

int lanes_from(std::int64_t i, std::int64_t size) { return static_cast<int>(std::min<std::int64_t>(16, size - i)); }

// Sixteen numbers from place `i` of `size`, or as many as there are; kWhole: there are always sixteen.
template <bool kWhole>
F16 load_at(const float* x, std::int64_t i, std::int64_t size) {
    if constexpr (kWhole) return load(x + i);
    return load_first(x + i, lanes_from(i, size));
}
template <bool kWhole>
void store_at(float* x, std::int64_t i, std::int64_t size, F16 value) {
    if constexpr (kWhole) return store(x + i, value);
    store_first(x + i, value, lanes_from(i, size));
}

// Query or key head number `head` of a token: normed, rotated, multiplied by `scale`. Number i of the rotated part is
// paired with number i + half (as in the Hugging Face layout).
template <bool kWhole>
void prepare_head(const AttentionCall& call, std::int64_t token, std::int64_t head, float scale, float* out) {
    const std::int64_t dim = call.shape.dim, half = call.half_rotated;
    const float* x = call.qkv + token * call.qkv_stride + head * dim;
    const float* norm = call.norm ? call.norm + head * dim : nullptr;
    const float *cos = call.cos + token * half, *sin = call.sin + token * half;
    const F16 factor = splat(norm ? rms_factor(x, dim, call.eps) : 1.0f), scales = splat(scale);
    const auto normed = [&](std::int64_t begin, std::int64_t i, std::int64_t size) {
        const F16 value = load_at<kWhole>(x + begin, i, size);
        return norm ? mul(mul(value, factor), load_at<kWhole>(norm + begin, i, size)) : value;
    };
    for (std::int64_t i = 0; i < half; i += 16) {
        const F16 a = normed(0, i, half), b = normed(half, i, half);
        const F16 c = load_at<kWhole>(cos, i, half), s = load_at<kWhole>(sin, i, half);
        store_at<kWhole>(out, i, half, mul(sub(mul(a, c), mul(b, s)), scales));
        store_at<kWhole>(out + half, i, half, mul(add(mul(b, c), mul(a, s)), scales));
    }
    const std::int64_t rest = dim - 2 * half;
    for (std::int64_t i = 0; i < rest; i += 16)
        store_at<kWhole>(out + 2 * half, i, rest, mul(normed(2 * half, i, rest), scales));
}

template <bool kWhole>
void write_queries(const AttentionCall& call, std::int64_t token, const QueryPlace& queries) {
    alignas(64) float own[kMaxHeadDim] = {};
    for (std::int64_t head = 0; head < call.shape.query_heads; ++head) {
        if (queries.floats) {
            prepare_head<kWhole>(call, token, head, call.scale, queries.float_row(token, head));
            continue;
        }
        prepare_head<kWhole>(call, token, head, call.scale, own);
        std::uint16_t* rounded = queries.rounded_row(token, head);
        for (std::int64_t i = 0; i < queries.rounded_dim(); i += 16) store_bf16_factors(rounded + i, load(own + i));
    }
}

// Keys and values of tokens of one block.
template <bool kWhole>
void write_keys_and_values(const AttentionCall& call, const WriteRange& range) {
    const HeadShape& shape = call.shape;
    const std::int64_t dim = shape.dim, slot = call.metadata->step.slots[range.first_token];
    const std::int64_t count = range.last_token - range.first_token;
    const float* values =
        call.qkv + range.first_token * call.qkv_stride + (shape.query_heads + shape.kv_heads) * dim;
    alignas(64) float keys[kBlock * kMaxHeadDim];
    for (std::int64_t head = 0; head < shape.kv_heads; ++head) {
        const std::int64_t place = slot / kBlock * shape.block_bytes() + head * shape.block_head_bytes();
        for (std::int64_t t = 0; t < count; ++t)
            prepare_head<kWhole>(call, range.first_token + t, shape.query_heads + head, 1.0f, keys + t * kMaxHeadDim);
        store_keys(call.keys + place, shape.kv_type, keys, count, dim, slot % kBlock);
        store_values(call.values + place, shape.kv_type, values + head * dim, call.qkv_stride, count, shape, slot % kBlock);
    }
}

template <bool kWhole>
void write_tokens(const AttentionCall& call, const QueryPlace& queries) {
    const auto& writes = call.metadata->writes;
    parallel_pieces(static_cast<std::int64_t>(writes.size()), [&](std::int64_t piece) {
        for (std::int64_t token = writes[piece].first_token; token < writes[piece].last_token; ++token)
            write_queries<kWhole>(call, token, queries);
        write_keys_and_values<kWhole>(call, writes[piece]);
    });
}

}  // namespace

void write_step(const AttentionCall& call, const QueryPlace& queries) {
    const bool whole = call.half_rotated % 16 == 0 && call.shape.dim % 16 == 0;
    (whole ? write_tokens<true> : write_tokens<false>)(call, queries);
}

}  // namespace kvarn::KVARN_ISA
