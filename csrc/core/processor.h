// What this processor can do, and its operating system lets programs use.
#pragma once

namespace kvarn {

struct Processor {
    bool avx2 = false;         // with FMA and F16C
    bool avx512 = false;       // F, BW, DQ, VL and VNNI
    bool avx512_bf16 = false;
    bool amx = false;          // tiles with bfloat16 and int8 products
};

// Found at the first call, which asks Linux for the use of AMX tile data where there is AMX.
const Processor& processor();

}  // namespace kvarn
