#include "sampling/mask.h"

#include <algorithm>
#include <limits>

#include "core/parallel.h"

namespace kvarn {
namespace {

constexpr std::int64_t kWord = 32;               // tokens of a word
constexpr std::int64_t kSegmentWords = 1024;     // one piece of work
constexpr float kNever = -std::numeric_limits<float>::infinity();

// Words that are all the same, as most are, are not looked at bit by bit.
void mask_words(float* logits, const std::uint32_t* words, std::int64_t count, std::int64_t last) {
    for (std::int64_t w = 0; w < count; ++w, logits += kWord) {
        const std::int64_t tokens = w + 1 == count ? last : kWord;
        if (words[w] == 0) {
            std::fill_n(logits, tokens, kNever);
        } else if (words[w] != ~0u) {
            for (std::int64_t t = 0; t < tokens; ++t) logits[t] = words[w] >> t & 1 ? logits[t] : kNever;
        }
    }
}

}  // namespace

void mask_logits(const MaskCall& call) {
    const std::int64_t words = (call.vocab + kWord - 1) / kWord;
    const std::int64_t segments = (words + kSegmentWords - 1) / kSegmentWords;
    parallel_pieces(call.count * segments, [&](std::int64_t piece) {
        const std::int64_t row = piece / segments, first = piece % segments * kSegmentWords;
        const std::int64_t count = std::min(kSegmentWords, words - first);
        const std::int64_t last = std::min(kWord, call.vocab - (first + count - 1) * kWord);
        mask_words(call.logits + call.rows[row] * call.stride + first * kWord, call.masks[row] + first, count, last);
    });
}

}  // namespace kvarn
