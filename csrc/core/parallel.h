// Work in small pieces.
//
// A loop cut into one fixed half per thread waits a whole time slice for the slower half whenever another process
// takes a core for a moment. So every parallel loop here hands out small pieces one after another, and which thread
// computes a piece never changes what is computed.
//
// OpenMP keeps the number of threads for each calling thread by itself: torch.set_num_threads holds in the thread that
// called it, and in another from its first call of torch.get_num_threads on.
#pragma once

#include <algorithm>
#include <cstdint>

#include <omp.h>

namespace kvarn {

// Calls body(piece) for every piece in [0, count) on the calling thread and its OpenMP team. body must not throw.
template <class Body>
void parallel_pieces(std::int64_t count, Body&& body) {
    if (count <= 1 || omp_get_max_threads() == 1) {
        for (std::int64_t piece = 0; piece < count; ++piece) body(piece);
        return;
    }
#pragma omp parallel for schedule(dynamic, 1)
    for (std::int64_t piece = 0; piece < count; ++piece) body(piece);
}

// [0, count) in pieces of `most` (at least 1), and towards its end of half as many each time, down to one (to most / 128):
// threads that take them one after another come to the end at about the same time.
class TaperedPieces {
  public:
    struct Range {
        std::int64_t first, last;    // one past
    };

    TaperedPieces(std::int64_t count, std::int64_t most) {
        const std::int64_t of_each_size = 2 * omp_get_max_threads();
        std::int64_t left = count;
        while ((most >> sizes_) > 0 && sizes_ < kMostSizes) ++sizes_;
        for (int n = sizes_ - 1; n > 0; --n) {
            runs_[n] = {most >> n, std::min(of_each_size, left / (most >> n))};
            left -= runs_[n].size * runs_[n].pieces;
        }
        runs_[0] = {most, left / most};
        rest_ = left % most;
        for (int n = 0; n < sizes_; ++n) count_ += runs_[n].pieces;
        count_ += rest_ > 0;
    }

    std::int64_t count() const { return count_; }

    // The first piece is what is left over; the others follow by size.
    Range operator[](std::int64_t piece) const {
        std::int64_t first = rest_;
        if (rest_ > 0 && piece-- == 0) return {0, rest_};
        for (int n = 0; n < sizes_; ++n) {
            if (piece < runs_[n].pieces) return {first + piece * runs_[n].size, first + (piece + 1) * runs_[n].size};
            piece -= runs_[n].pieces;
            first += runs_[n].size * runs_[n].pieces;
        }
        return {first, first};
    }

  private:
    struct Run {
        std::int64_t size, pieces;
    };

    static constexpr int kMostSizes = 8;
    Run runs_[kMostSizes] = {};    // of equal pieces, the largest first
    int sizes_ = 0;
    std::int64_t rest_, count_ = 0;
};

}  // namespace kvarn
