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

}  // namespace

void bind_roofline(BackendClass& backend) {
    backend.def(
        "read_all",
        [](Backend& self, std::uintptr_t memory, std::int64_t bytes) {
            nb::gil_scoped_release unlocked;
            const Work work = read_on(self.isa, at<const std::byte>(memory), bytes);
            return std::pair(work.amount, work.digest);
        },
        "memory"_a, "size"_a, "Read memory once on all threads: (bytes read, digest).");
    backend.def(
        "multiply_floats",
        [](Backend& self, std::int64_t pieces, std::int64_t rounds) {
            nb::gil_scoped_release unlocked;
            const Work work = multiply_floats_on(self.isa, pieces, rounds);
            return std::pair(work.amount, work.digest);
        },
        "pieces"_a, "rounds"_a, "Multiply-adds from registers on all threads: (operations, digest).");
    backend.def(
        "multiply_bytes",
        [](Backend& self, std::int64_t pieces, std::int64_t rounds) {
            nb::gil_scoped_release unlocked;
            const Work work = multiply_bytes_on(self.isa, pieces, rounds);
            return std::pair(work.amount, work.digest);
        },
        "pieces"_a, "rounds"_a, "Multiply-adds of bytes from registers on all threads: (operations, digest).");
}

}  // namespace kvarn
