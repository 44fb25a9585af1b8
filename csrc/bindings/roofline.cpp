#include "roofline/ceilings.h"

#include <nanobind/stl/pair.h>

#include "bindings/backend.h"
#include "bindings/topics.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace kvarn {

#define KVARN_DECLARE(name)                             \
    namespace name {                                    \
    Work read_all(const std::byte*, std::int64_t);      \
    Work multiply_floats(std::int64_t, std::int64_t);   \
    Work multiply_bytes(std::int64_t, std::int64_t);    \
    }
KVARN_FOR_EACH_ISA(KVARN_DECLARE)
#undef KVARN_DECLARE

namespace {

Work read_on(Isa isa, const std::byte* memory, std::int64_t bytes) { KVARN_CALL(isa, read_all, memory, bytes); return {}; }
Work multiply_floats_on(Isa isa, std::int64_t pieces, std::int64_t rounds) {
    KVARN_CALL(isa, multiply_floats, pieces, rounds);
    return {};
}
Work multiply_bytes_on(Isa isa, std::int64_t pieces, std::int64_t rounds) {
    KVARN_CALL(isa, multiply_bytes, pieces, rounds);
    return {};
}

// Binds work(isa, first, second) as a method that says how much was done, and a digest of it.
template <class First, class Measure>
void bind_work(BackendClass& backend, const char* name, Measure measure, const char* doc) {
    backend.def(
        name,
        [measure](Backend& self, First first, std::int64_t second) {
            nb::gil_scoped_release unlocked;
            const Work work = measure(self.isa, first, second);
            return std::pair(work.amount, work.digest);
        },
        doc);
}

}  // namespace

void bind_roofline(BackendClass& backend) {
    const auto read = [](Isa isa, std::uintptr_t memory, std::int64_t bytes) {
        return read_on(isa, at<const std::byte>(memory), bytes);
    };
    bind_work<std::uintptr_t>(backend, "read_all", read,
                              "(memory, size): read memory once on all threads: (bytes read, digest).");
    bind_work<std::int64_t>(backend, "multiply_floats", &multiply_floats_on,
                            "(pieces, rounds): multiply-adds from registers on all threads: (operations, digest).");
    bind_work<std::int64_t>(backend, "multiply_bytes", &multiply_bytes_on,
                            "(pieces, rounds): multiply-adds of bytes from registers: (operations, digest).");
}

}  // namespace kvarn
