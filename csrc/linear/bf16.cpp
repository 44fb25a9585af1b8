// Linear layers on bfloat16 weights where the processor multiplies bfloat16 (AMX, or AVX-512 BF16): rows are rounded
// to bfloat16 once, after their norm, and sums are kept in float.
#include "linear/bf16.h"

#if KVARN_HAS_BF16DOT

#include <cstdint>

#include <omp.h>

#include "core/workspace.h"
#include "linear/blocked_driver.h"
#include "linear/prepare.h"
#include "simd/simd.h"

namespace kvarn::KVARN_ISA {

namespace {

class Bf16Form {
  public:
    using Product = Bf16Product;

    Bf16Form(const LinearCall& call, Carver& memory)
        : call_(call), prepared_(memory.take<float>(omp_get_max_threads() * call.weight.in_padded())) {}

    void put(std::int64_t row, const BlockedRows& rows) const {
        float* x = prepared_ + omp_get_thread_num() * call_.weight.in_padded();
        prepare_row(call_, row, x);
        for (std::int64_t step = 0; step < rows.steps; ++step, x += kStepInputs) {
            std::byte* line = rows.line(row, step);
            store_bf16_factors(line, load(x));
            store_bf16_factors(line + kLine / 2, load(x + kStepInputs / 2));
        }
    }

    void to_floats(std::int64_t, std::int64_t, int, std::byte*) const {}

    static constexpr std::int64_t kStepInputs = 32;
    static constexpr bool kExact = false;

  private:
    const LinearCall& call_;
    float* prepared_;   // [threads][in_padded]: one row of each
};

}  // namespace

void linear_bf16(const LinearCall& call) {
    run_blocked<Bf16Form>(call);
}

}  // namespace kvarn::KVARN_ISA

#endif
