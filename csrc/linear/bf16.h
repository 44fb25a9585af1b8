// Linear layers on bfloat16 weights by the processor's own bfloat16 products.
#pragma once

#include "linear/linear.h"
#include "simd/features.h"

namespace kvarn::KVARN_ISA {

#if KVARN_HAS_BF16DOT
// Takes Format::bf16.
void linear_bf16(const LinearCall& call);
#endif

}  // namespace kvarn::KVARN_ISA
