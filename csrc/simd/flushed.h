// The rounding of the processor's bfloat16 products, for their software versions.
#pragma once

#include <immintrin.h>

namespace kvarn::KVARN_ISA {

// While it lives, this thread's float operations take and give zero in place of denormal numbers and round to nearest.
class Flushed {
  public:
    Flushed() : before_(_mm_getcsr()) { set(kMaskedFlushedNearest); }
    Flushed(const Flushed&) = delete;
    Flushed& operator=(const Flushed&) = delete;
    ~Flushed() { set(before_); }

  private:
    static constexpr unsigned kMaskedFlushedNearest = 0x9fc0;

    // The barriers keep reads and writes of numbers, and with them the operations between, on their side of the change.
    static void set(unsigned control) {
        asm volatile("" ::: "memory");
        _mm_setcsr(control);
        asm volatile("" ::: "memory");
    }
    unsigned before_;
};

}  // namespace kvarn::KVARN_ISA
