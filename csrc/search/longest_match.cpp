#include "search/longest_match.h"

#include <algorithm>

namespace kvarn {
namespace {

constexpr std::int64_t kStride = 64;    // tokens that are compared with one at a time

bool holds(const std::int32_t* tokens, std::int32_t token) {
    bool found = false;
    for (std::int64_t i = 0; i < kStride; ++i) found |= tokens[i] == token;
    return found;
}

}  // namespace

Match longest_match(const std::int32_t* text, std::int64_t length, const std::int32_t* tail,
                    std::int64_t tail_length) {
    Match best{0, 0};
    const std::int32_t* last = tail + tail_length - 1;
    const auto same_at = [&](std::int64_t place, std::int64_t back) {
        return place >= back && text[place - back] == last[-back];
    };
    for (std::int64_t end = length; end > 0;) {
        const std::int64_t begin = std::max<std::int64_t>(end - kStride, 0);
        if (end - begin < kStride || holds(text + begin, *last)) {
            for (std::int64_t place = end - 1; place >= begin; --place) {
                if (text[place] != *last || (best.length && !same_at(place, best.length))) continue;
                std::int64_t count = 1;
                while (count < tail_length && same_at(place, count)) ++count;
                if (count > best.length) best = {place + 1, count};
                if (count == tail_length) return best;
            }
        }
        end = begin;
    }
    return best;
}

}  // namespace kvarn
