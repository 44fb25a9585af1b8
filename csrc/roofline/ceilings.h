// The machine's two ceilings: how fast memory is read, and how fast numbers are multiplied.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvarn {

// What `read_all` and `multiply_floats` did; the caller takes the time.
struct Work {
    double amount;         // bytes read, or operations (a multiply-add counts as two)
    std::uint64_t digest;  // of the data, so that no compiler can leave the work out
};

}  // namespace kvarn
