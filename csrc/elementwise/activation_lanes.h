// The activation of sixteen numbers: shared by the activation itself and by the linear layers that apply one.
#pragma once

#include "core/activation.h"
#include "simd/simd.h"

namespace kvarn::KVARN_ISA {

inline F16 activate(F16 x, Activation activation) {
    switch (activation) {
        case Activation::none: break;
        case Activation::silu: return silu(x);
        case Activation::gelu: return gelu(x);
        case Activation::gelu_tanh: return gelu_tanh(x);
        case Activation::sigmoid: return sigmoid(x);
        case Activation::tanh: return tanh(x);
    }
    return x;
}

}  // namespace kvarn::KVARN_ISA
