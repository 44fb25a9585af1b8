// Plain weights to int8 or int4, row by row: what kvarn/kernels/torch/quantize.py defines, at the speed of memory.
#pragma once

#include <cstdint>

namespace kvarn {

struct PlainWeight {
    const void* values;    // [out, in], float or bfloat16
    bool is_bf16;
    std::int64_t out, in;
};

// values [out, in], scales [out]
struct Int8Weight {
    std::int8_t* values;
    float* scales;
};

// values [out, in], 0 to 15; scales [out, in / 128], half precision; multipliers [out, in / 32]. Divisions round up.
struct Int4Weight {
    std::uint8_t* values;
    std::uint16_t* scales;
    std::int8_t* multipliers;
};

}  // namespace kvarn
