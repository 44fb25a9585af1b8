// Activation functions by number, as kvarn/kernels/activation.py names them.
#pragma once

namespace kvarn {

enum class Activation : int { none = 0, silu = 1, gelu = 2, gelu_tanh = 3, sigmoid = 4, tanh = 5 };

}  // namespace kvarn
