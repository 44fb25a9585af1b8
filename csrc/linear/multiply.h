// A product on the chosen instruction set, with what adapters add to it.
#pragma once

#include <cstdint>

#include "core/isa.h"
#include "linear/adapters.h"
#include "linear/linear.h"

namespace kvarn {

bool is_integer(const PackedWeight& weight);

// `layer`: of the adapters, see AdapterBatch; what they add is kept in `deltas` meanwhile. Null: no adapters.
void multiply(Isa isa, LinearCall call, const AdapterBatch* adapters, std::int64_t layer, Workspace& deltas);

}  // namespace kvarn
