// The instruction sets that kernels are compiled for, and the choice among them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

// Applies X to the name of every instruction set of this build, best first, and to what else is given. The emulated
// ones come last: they run the code of the set they are named after with its newest instructions done in software.
#if defined(__x86_64__)
#define KVARN_FOR_EACH_ISA(X, ...)                                                                                   \
    KVARN_APPLY(X, amx, __VA_ARGS__) KVARN_APPLY(X, avx512_bf16, __VA_ARGS__) KVARN_APPLY(X, avx512, __VA_ARGS__)     \
    KVARN_APPLY(X, avx2, __VA_ARGS__) KVARN_APPLY(X, generic, __VA_ARGS__) KVARN_FOR_EACH_EMULATED(X, __VA_ARGS__)
#else
#define KVARN_FOR_EACH_ISA(X, ...) KVARN_APPLY(X, generic, __VA_ARGS__)
#endif
#if defined(KVARN_EMULATED_SETS)
#define KVARN_FOR_EACH_EMULATED(X, ...)                                                              \
    KVARN_APPLY(X, emulated_amx, __VA_ARGS__) KVARN_APPLY(X, emulated_avx512_bf16, __VA_ARGS__) \
    KVARN_APPLY(X, emulated_avx512, __VA_ARGS__)
#else
#define KVARN_FOR_EACH_EMULATED(X, ...)
#endif
#define KVARN_APPLY(X, name, ...) X(name __VA_OPT__(, ) __VA_ARGS__)

namespace kvarn {

enum class Isa {
#define KVARN_NAME(name) name,
    KVARN_FOR_EACH_ISA(KVARN_NAME)
#undef KVARN_NAME
};

// Names of the instruction sets in this build that this processor and its operating system offer, best first;
// `generic` is always among them. The first call asks Linux for the use of AMX tile data, where there are tiles.
std::vector<std::string> usable_instruction_sets();

// Names of the emulated ones that can run here. They are for tests, and only used when asked for by name.
std::vector<std::string> emulated_instruction_sets();

// Throws std::invalid_argument, which lists the usable ones, where this processor or this build has no such set.
Isa isa_named(std::string_view name);

}  // namespace kvarn

// Calls kvarn::<isa>::function(...) of the chosen instruction set. What is called must be declared for each of them:
// KVARN_FOR_EACH_ISA(KVARN_DECLARE).
#define KVARN_CALL_IF(name, isa, function, ...) \
    if ((isa) == ::kvarn::Isa::name) return ::kvarn::name::function(__VA_ARGS__);
#define KVARN_CALL(isa, function, ...) KVARN_FOR_EACH_ISA(KVARN_CALL_IF, isa, function, __VA_ARGS__)
