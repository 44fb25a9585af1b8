#include "linear/int8_tiles.h"

#if KVARN_HAS_TILES

#include <cstdint>
#include <cstring>

#include <omp.h>

#include "core/workspace.h"
#include "linear/blocked_driver.h"
#include "linear/prepare.h"
#include "linear/quantise_row.h"
#include "simd/simd.h"

namespace kvarn::KVARN_ISA {

namespace {

class Int8Form {
  public:
    using Product = Int8Product;
    static constexpr std::int64_t kStepInputs = 64;
    static constexpr bool kExact = true;

    Int8Form(const LinearCall& call, Carver& memory)
        : call_(call), scales_(reinterpret_cast<const float*>(call.weight.blob + sections(call.weight).scales)),
          row_scales_(memory.take<float>(call.rows)),
          prepared_(memory.take<float>(omp_get_max_threads() * call.weight.in_padded())),
          quantised_(memory.take<std::int8_t>(omp_get_max_threads() * call.weight.in_padded())) {}

    void put(std::int64_t row, const BlockedRows& rows) const {
        const std::int64_t in = call_.weight.in_padded();
        float* x = prepared_ + omp_get_thread_num() * in;
        std::int8_t* q = quantised_ + omp_get_thread_num() * in;
        prepare_row(call_, row, x);
        row_scales_[row] = quantise(x, in, q);
        for (std::int64_t step = 0; step < rows.steps; ++step)
            std::memcpy(rows.line(row, step), q + step * kStepInputs, kLine);
    }

    void to_floats(std::int64_t row, std::int64_t panel, int panels, std::byte* words) const {
        const F16 row_scale = splat(row_scales_[row]);
        for (int p = 0; p < panels; ++p, words += kLine) {
            const F16 dots = from_int32(reinterpret_cast<const std::int32_t*>(words));
            store(reinterpret_cast<float*>(words), mul(dots, mul(row_scale, load(scales_ + (panel + p) * kPanel))));
        }
    }

  private:
    const LinearCall& call_;
    const float* scales_;
    float* row_scales_;
    float* prepared_;          // [threads][in_padded]: one row of each
    std::int8_t* quantised_;   // likewise
};

}  // namespace

void linear_int8_tiles(const LinearCall& call) { run_blocked<Int8Form>(call); }

}  // namespace kvarn::KVARN_ISA

#endif
