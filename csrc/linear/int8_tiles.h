// Linear layers on int8 weights by AMX.
#pragma once

#include "linear/linear.h"
#include "simd/features.h"

namespace kvarn::KVARN_ISA {

#if KVARN_HAS_TILES
// Takes Format::int8. The same results, bit for bit, as on every other instruction set.
void linear_int8_tiles(const LinearCall& call);
#endif

}  // namespace kvarn::KVARN_ISA
