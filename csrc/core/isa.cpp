#include "core/isa.h"

#include <stdexcept>

#include "core/processor.h"

namespace kvarn {

namespace {

bool can_run(Isa isa) {
#if defined(__x86_64__)
    const Processor& here = processor();
    switch (isa) {
        case Isa::amx: return here.amx && here.avx512_bf16 && here.avx512 && here.avx2;
        case Isa::avx512_bf16: return here.avx512_bf16 && here.avx512 && here.avx2;
        case Isa::avx512: return here.avx512 && here.avx2;
        case Isa::generic: return true;
        default: return here.avx2;  // the emulated ones too
    }
#else
    return isa == Isa::generic;
#endif
}

struct Named {
    std::string_view name;
    Isa isa;
    bool emulated() const { return name.starts_with("emulated_"); }
};

constexpr Named kAll[] = {
#define KVARN_NAMED(name) {#name, Isa::name},
    KVARN_FOR_EACH_ISA(KVARN_NAMED)
#undef KVARN_NAMED
};

std::vector<std::string> names(bool emulated) {
    std::vector<std::string> found;
    for (const Named& each : kAll)
        if (each.emulated() == emulated && can_run(each.isa)) found.emplace_back(each.name);
    return found;
}

}  // namespace

std::vector<std::string> usable_instruction_sets() { return names(false); }

std::vector<std::string> emulated_instruction_sets() { return names(true); }

Isa isa_named(std::string_view name) {
    for (const Named& each : kAll)
        if (each.name == name && can_run(each.isa)) return each.isa;
    std::string message = "no instruction set '" + std::string(name) + "' here; usable:";
    for (const std::string& usable : usable_instruction_sets()) message += " " + usable;
    throw std::invalid_argument(message);
}

}  // namespace kvarn
