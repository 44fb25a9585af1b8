#include "core/tile_counts.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>

#include "bindings/topics.h"

namespace nb = nanobind;

namespace kvarn {

void bind_tile_counts(nb::module_& m) {
    nb::class_<TileCounter>(m, "TileCounter", "Counts what emulated tiles do while it is entered; of one thread at a time.")
        .def(nb::init<>())
        .def("__enter__",
             [](TileCounter& self) -> TileCounter& {
                 self.start();
                 return self;
             },
             nb::rv_policy::reference)
        .def("__exit__", [](TileCounter& self, nb::args) { self.stop(); })
        .def_ro("products", &TileCounter::products)
        .def_ro("loaded", &TileCounter::loaded)
        .def_ro("stored", &TileCounter::stored)
        .def_ro("configurations", &TileCounter::configurations);
}

}  // namespace kvarn
