// Work in small pieces.
//
// A loop cut into one fixed half per thread waits a whole time slice for the slower half whenever another process
// takes a core for a moment. So every parallel loop here hands out small pieces one after another, and which thread
// computes a piece never changes what is computed.
#pragma once

#include <cstdint>

#include <omp.h>

namespace kvarn {

// Calls body(piece) for every piece in [0, count) on the threads of this process's OpenMP team.
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
