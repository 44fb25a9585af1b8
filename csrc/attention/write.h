// The first half of a layer's attention: queries made ready, keys and values put into the cache.
#pragma once

#include "attention/attention.h"

namespace kvarn::KVARN_ISA {

// Norms and rotates query and key heads; keys and values go to their slots, scaled queries to `queries` [T, H, D].
void write_step(const AttentionCall& call, float* queries);

}  // namespace kvarn::KVARN_ISA
