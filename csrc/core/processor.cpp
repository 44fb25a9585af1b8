#include "core/processor.h"

#include <cstdint>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace kvarn {

#if defined(__x86_64__)
namespace {

struct Leaf {
    unsigned a = 0, b = 0, c = 0, d = 0;
};

// All zero where the processor has no such leaf.
Leaf cpuid(unsigned leaf, unsigned subleaf = 0) {
    Leaf found;
    if (!__get_cpuid_count(leaf, subleaf, &found.a, &found.b, &found.c, &found.d)) return {};
    return found;
}

constexpr bool bit(unsigned word, int index) { return word >> index & 1; }

// Register states that the operating system saves and restores (XCR0). What it does not save must not be used.
std::uint64_t saved_states() {
    if (!bit(cpuid(1).c, 27)) return 0;  // OSXSAVE
    unsigned low, high;
    asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return static_cast<std::uint64_t>(high) << 32 | low;
}

constexpr std::uint64_t kYmmStates = 0x6;          // xmm, high halves of ymm
constexpr std::uint64_t kZmmStates = 0xe0 | kYmmStates;  // masks, high halves of zmm 0-15, zmm 16-31
constexpr std::uint64_t kTileStates = 0x60000;     // configuration and data of the tiles

// Tile data is 8 KiB in every signal frame and context switch, so Linux gives it to a process only when asked (Linux
// documentation, x86/xstate; since 5.16). The permission holds for all threads, also those that are there already.
bool tile_data_permitted() {
#if defined(__linux__)
    constexpr int kRequestPermission = 0x1023, kTileData = 18;
    return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
    return false;
#endif
}

Processor find() {
    const std::uint64_t saved = saved_states();
    const auto saves = [&](std::uint64_t states) { return (saved & states) == states; };
    const Leaf basic = cpuid(1), extended = cpuid(7), second = extended.a >= 1 ? cpuid(7, 1) : Leaf{};
    Processor here;
    here.avx2 = saves(kYmmStates) && bit(extended.b, 5) && bit(basic.c, 12) && bit(basic.c, 29);
    const bool foundation = bit(extended.b, 16) && bit(extended.b, 17) && bit(extended.b, 30) && bit(extended.b, 31);
    here.avx512 = saves(kZmmStates) && foundation && bit(extended.c, 11);
    here.avx512_bf16 = here.avx512 && bit(second.a, 5);
    const bool tiles = bit(extended.d, 22) && bit(extended.d, 24) && bit(extended.d, 25);
    here.amx = here.avx512 && saves(kTileStates) && tiles && tile_data_permitted();
    return here;
}

}  // namespace
#else
namespace {
Processor find() { return {}; }
}  // namespace
#endif

const Processor& processor() {
    static const Processor here = find();
    return here;
}

}  // namespace kvarn
