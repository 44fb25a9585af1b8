#include "attention/write.h"

#include "attention/kv_block.h"
#include "core/parallel.h"
#include "elementwise/norm_row.h"
#include "simd/simd.h"

namespace kvarn::KVARN_ISA {

namespace {

int lanes_from(std::int64_t i, std::int64_t size) { return static_cast<int>(std::min<std::int64_t>(16, size - i)); }

void norm_head(const float* x, const float* weight, float eps, std::int64_t dim, float* out) {
    const F16 factor = splat(rms_factor(x, dim, eps));
    for (std::int64_t i = 0; i < dim; i += 16) {
        const int n = lanes_from(i, dim);
        store_first(out + i, mul(mul(load_first(x + i, n), factor), load_first(weight + i, n)), n);
    }
}

// Number i of the rotated part is paired with number i + half (as in the Hugging Face layout). `out` may be `x`.
void rotate(const float* x, const float* cos, const float* sin, std::int64_t half, std::int64_t dim, float* out) {
    for (std::int64_t i = 0; i < half; i += 16) {
        const int n = lanes_from(i, half);
        const F16 a = load_first(x + i, n), b = load_first(x + half + i, n);
        const F16 c = load_first(cos + i, n), s = load_first(sin + i, n);
        store_first(out + i, sub(mul(a, c), mul(b, s)), n);
        store_first(out + half + i, add(mul(b, c), mul(a, s)), n);
    }
    for (std::int64_t i = 2 * half; i < dim; i += 16) {
        const int n = lanes_from(i, dim);
        store_first(out + i, load_first(x + i, n), n);
    }
}

// Query or key head number `head` of a token, normed and rotated.
void prepare_head(const AttentionCall& call, std::int64_t token, std::int64_t head, float* out) {
    const std::int64_t dim = call.shape.dim, half = call.half_rotated;
    const float* x = call.qkv + token * call.qkv_stride + head * dim;
    if (call.norm) {
        norm_head(x, call.norm + head * dim, call.eps, dim, out);
        x = out;
    }
    rotate(x, call.cos + token * half, call.sin + token * half, half, dim, out);
}

void write_queries(const AttentionCall& call, std::int64_t token, const QueryPlace& queries) {
    const std::int64_t dim = call.shape.dim;
    const F16 scale = splat(call.scale);
    alignas(64) float own[kMaxHeadDim] = {};
    for (std::int64_t head = 0; head < call.shape.query_heads; ++head) {
        float* query = queries.floats ? queries.float_row(token, head) : own;
        prepare_head(call, token, head, query);
        for (std::int64_t i = 0; i < dim; i += 16) {
            const int n = lanes_from(i, dim);
            store_first(query + i, mul(load_first(query + i, n), scale), n);
        }
        if (queries.floats) continue;
        std::uint16_t* rounded = queries.rounded_row(token, head);
        for (std::int64_t i = 0; i < queries.rounded_dim(); i += 16) store_bf16_factors(rounded + i, load(own + i));
    }
}

// Keys and values of tokens of one block.
void write_keys_and_values(const AttentionCall& call, const WriteRange& range) {
    const HeadShape& shape = call.shape;
    const std::int64_t dim = shape.dim, slot = call.plan->step.slots[range.first_token];
    const std::int64_t count = range.last_token - range.first_token;
    const float* values =
        call.qkv + range.first_token * call.qkv_stride + (shape.query_heads + shape.kv_heads) * dim;
    alignas(64) float keys[kBlock * kMaxHeadDim];
    for (std::int64_t head = 0; head < shape.kv_heads; ++head) {
        const std::int64_t place = slot / kBlock * shape.block_bytes() + head * shape.block_head_bytes();
        for (std::int64_t t = 0; t < count; ++t)
            prepare_head(call, range.first_token + t, shape.query_heads + head, keys + t * kMaxHeadDim);
        store_keys(call.keys + place, shape.kv_type, keys, count, dim, slot % kBlock);
        store_values(call.values + place, shape.kv_type, values + head * dim, call.qkv_stride, count, shape, slot % kBlock);
    }
}

}  // namespace

void write_step(const AttentionCall& call, const QueryPlace& queries) {
    const auto& writes = call.plan->writes;
    parallel_pieces(static_cast<std::int64_t>(writes.size()), [&](std::int64_t piece) {
        for (std::int64_t token = writes[piece].first_token; token < writes[piece].last_token; ++token)
            write_queries(call, token, queries);
        write_keys_and_values(call, writes[piece]);
    });
}

}  // namespace kvarn::KVARN_ISA
