// Where a text's end stood before: what n-gram speculation looks for.
#pragma once

#include <cstdint>

namespace kvarn {

struct Match {
    std::int64_t place;     // position after the match
    std::int64_t length;    // tokens that are the same; 0: not even the last one was found
};

// The latest of the longest ends of `tail` (at least one token) that `text` holds.
Match longest_match(const std::int32_t* text, std::int64_t length, const std::int32_t* tail, std::int64_t tail_length);

}  // namespace kvarn
