// int4 weights multiplied by AMX tiles, where there are enough rows: the definition is in integer.cpp.
#pragma once

#include "linear/linear.h"
#include "simd/features.h"

#if KVARN_HAS_TILES

namespace kvarn::KVARN_ISA {

bool uses_int4_tiles(const LinearCall& call);
void linear_int4_tiles(const LinearCall& call);

}  // namespace kvarn::KVARN_ISA

#endif
