// The instruction sets that kernels are compiled for, and the choice among them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

// Applies X to the name of every instruction set of this build, best first.
#if defined(__x86_64__)
#define KVARN_FOR_EACH_ISA(X) X(avx2) X(generic)
#else
#define KVARN_FOR_EACH_ISA(X) X(generic)
#endif

namespace kvarn {

enum class Isa {
#define KVARN_NAME(name) name,
    KVARN_FOR_EACH_ISA(KVARN_NAME)
#undef KVARN_NAME
};

// Names of the instruction sets in this build that this processor has, best first; `generic` is always among them.
std::vector<std::string> usable_instruction_sets();

// Throws std::invalid_argument, which lists the usable ones, where this processor or this build has no such set.
Isa isa_named(std::string_view name);

}  // namespace kvarn

// Calls kvarn::<isa>::function(...) of the chosen instruction set. What is called must be declared for each of them:
// KVARN_FOR_EACH_ISA(KVARN_DECLARE).
#define KVARN_CALL_IF(name, isa, function, ...) \
    if ((isa) == ::kvarn::Isa::name) return ::kvarn::name::function(__VA_ARGS__);
#if defined(__x86_64__)
#define KVARN_CALL(isa, function, ...)               \
    KVARN_CALL_IF(avx2, isa, function, __VA_ARGS__)  \
    KVARN_CALL_IF(generic, isa, function, __VA_ARGS__)
#else
#define KVARN_CALL(isa, function, ...) KVARN_CALL_IF(generic, isa, function, __VA_ARGS__)
#endif
