// Activations of numbers that stand one after another.
#pragma once

#include <cstdint>

#include "core/activation.h"

namespace kvarn {

// out[i] = activation(x[i]). A result depends on its own number alone, not on its place or on the threads.
struct ActivationCall {
    const float* x;    // [count]
    std::int64_t count;
    Activation activation;
    float* out;        // [count]; may be x
};

}  // namespace kvarn
