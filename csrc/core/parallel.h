// Work in small pieces.
//
// A loop cut into one fixed half per thread waits a whole time slice for the slower half whenever another process
// takes a core for a moment. So every parallel loop here hands out small pieces one after another, and which thread
// computes a piece never changes what is computed.
//
// OpenMP keeps the number of threads for each calling thread by itself: torch.set_num_threads holds in the thread that
// called it, and in another from its first call of torch.get_num_threads on.
#pragma once

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

}  // namespace kvarn
