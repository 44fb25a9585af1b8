#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include "bindings/backend.h"
#include "bindings/topics.h"

namespace nb = nanobind;

NB_MODULE(_native, m) {
    using namespace kvarn;
    // An engine ends with its model still in use: what is alive at the interpreter's end is no leak.
    nb::set_leak_warnings(false);
    m.doc() = "Compiled CPU kernels. Use kvarn.kernels.cpu, which checks what it passes.";
    m.def("usable_instruction_sets", &usable_instruction_sets,
          "Instruction sets in this build that this processor has, best first.");
    m.def("emulated_instruction_sets", &emulated_instruction_sets,
          "Sets in this build whose newest instructions are done in software, for tests.");
    BackendClass backend(m, "Backend");
    backend.def(
        "__init__", [](Backend* self, std::string_view isa) { new (self) Backend{isa_named(isa), {}, {}, {}, {}}; },
        nb::arg("isa"), "Kernels of one instruction set. Raises ValueError where this processor lacks it.");
    bind_elementwise(backend);
    bind_roofline(backend);
    bind_adapters(m);
    bind_linear(m, backend);
    bind_attention(m, backend);
    bind_delta(backend);
    bind_sampling(backend);
    bind_search(m);
    bind_tile_counts(m);
    bind_decoder(m, backend);
}
