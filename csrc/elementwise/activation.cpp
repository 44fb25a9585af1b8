#include "elementwise/activation.h"

#include <algorithm>

#include "core/parallel.h"
#include "elementwise/activation_lanes.h"

namespace kvarn::KVARN_ISA {

namespace {

constexpr std::int64_t kPieceNumbers = 16 * 1024;  // numbers of one piece of work

}  // namespace

// The last numbers go through the same sixteen lanes as all others: a scalar function would round some of them otherwise.
void activate_all(const ActivationCall& call) {
    parallel_pieces((call.count + kPieceNumbers - 1) / kPieceNumbers, [&](std::int64_t piece) {
        const std::int64_t last = std::min(call.count, (piece + 1) * kPieceNumbers);
        for (std::int64_t i = piece * kPieceNumbers; i < last; i += 16) {
            const int n = static_cast<int>(std::min<std::int64_t>(16, last - i));
            store_first(call.out + i, activate(load_first(call.x + i, n), call.activation), n);
        }
    });
}

}  // namespace kvarn::KVARN_ISA
