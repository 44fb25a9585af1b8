// Memory that the call after this one reads. A product of a few rows leaves the memory idle while it multiplies, so its
// pieces of work ask for a share of that memory each, a few lines at a time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvarn {

// Asks for a line that is read once. It goes past the outer caches: a step's weights leave there what comes between steps,
// the interpreter's code and the gateway's.
inline void prefetch_once(const void* line) { __builtin_prefetch(line, 0, 0); }

// Lines of 64 bytes, in runs of neighbours.
struct PrefetchList {
    struct Run {
        const std::byte* begin;
        std::int64_t first, lines;   // number of its first line among all; how many it has
    };
    std::vector<Run> runs;
    std::int64_t lines = 0;

    void add(const std::byte* begin, std::int64_t count) {
        runs.push_back({begin, lines, count});
        lines += count;
    }
};

// The lines that one piece of work asks for.
class PrefetchShare {
  public:
    // Share `piece` of `pieces`, to be asked for by `asks` calls of ask(); of no list, nothing.
    PrefetchShare(const PrefetchList* list, std::int64_t piece, std::int64_t pieces, std::int64_t asks) {
        if (!list) return;
        const std::int64_t first = list->lines * piece / pieces;
        left_ = list->lines * (piece + 1) / pieces - first;
        if (!left_) return;
        each_ = (left_ + asks - 1) / asks;
        const auto after = [](std::int64_t line, const PrefetchList::Run& run) { return line < run.first; };
        run_ = &*std::upper_bound(list->runs.begin(), list->runs.end(), first, after) - 1;
        line_ = first - run_->first;
    }

    void ask() {
        for (std::int64_t i = std::min(each_, left_); i > 0; --i, --left_, ++line_) {
            if (line_ == run_->lines) {
                ++run_;
                line_ = 0;
            }
            __builtin_prefetch(run_->begin + line_ * 64, 0, 2);
        }
    }

  private:
    const PrefetchList::Run* run_ = nullptr;
    std::int64_t line_ = 0, left_ = 0, each_ = 0;
};

}  // namespace kvarn
