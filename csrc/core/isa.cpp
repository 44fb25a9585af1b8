#include "core/isa.h"

#include <algorithm>
#include <stdexcept>

namespace kvarn {

namespace {

bool processor_has(Isa isa) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    switch (isa) {
        case Isa::avx2:
            return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
        case Isa::generic: return true;
    }
#endif
    return isa == Isa::generic;
}

struct Named {
    std::string_view name;
    Isa isa;
};

constexpr Named kAll[] = {
#define KVARN_NAMED(name) {#name, Isa::name},
    KVARN_FOR_EACH_ISA(KVARN_NAMED)
#undef KVARN_NAMED
};

}  // namespace

std::vector<std::string> usable_instruction_sets() {
    std::vector<std::string> names;
    for (const Named& each : kAll)
        if (processor_has(each.isa)) names.emplace_back(each.name);
    return names;
}

Isa isa_named(std::string_view name) {
    for (const Named& each : kAll)
        if (each.name == name && processor_has(each.isa)) return each.isa;
    std::string message = "no instruction set '" + std::string(name) + "' here; usable:";
    for (const std::string& usable : usable_instruction_sets()) message += " " + usable;
    throw std::invalid_argument(message);
}

}  // namespace kvarn
