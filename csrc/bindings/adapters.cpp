#include <stdexcept>
#include <tuple>
#include <vector>

#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bindings/backend.h"
#include "bindings/topics.h"
#include "linear/adapters.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace kvarn {

namespace {

// First line, rank, inputs, first output, outputs, scale.
using PartTuple = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t, float>;

void set_adapter(AdapterTable& table, std::int64_t index, const std::vector<std::uintptr_t>& pages,
                 const std::vector<std::vector<PartTuple>>& layers) {
    Adapter adapter;
    for (const std::uintptr_t page : pages) adapter.pages.push_back(at<const std::byte>(page));
    for (const auto& parts : layers) {
        auto& own = adapter.layers.emplace_back();
        for (const auto& [line, rank, in, first_out, outs, scale] : parts)
            own.push_back({line, rank, in, first_out, outs, scale});
    }
    const auto place = static_cast<std::size_t>(index);
    if (table.adapters.size() <= place) table.adapters.resize(place + 1);
    table.adapters[place] = std::move(adapter);
}

void make_batch(AdapterBatch* self, const AdapterTable& table, const std::vector<std::int64_t>& rows,
                const std::vector<std::tuple<std::int64_t, std::int64_t>>& groups) {
    AdapterBatch batch{&table, rows, {}};
    std::int64_t first = 0;
    for (const auto& [adapter, count] : groups) {
        if (adapter < 0 || static_cast<std::size_t>(adapter) >= table.adapters.size())
            throw std::invalid_argument("a row names an adapter that the table has not");
        batch.groups.push_back({adapter, first, count});
        first += count;
    }
    if (first != static_cast<std::int64_t>(rows.size())) throw std::invalid_argument("groups and rows do not add up");
    new (self) AdapterBatch(std::move(batch));
}

}  // namespace

void bind_adapters(nb::module_& m) {
    nb::class_<AdapterTable>(m, "AdapterTable", "Adapters that can be used now; their pages must outlive it.")
        .def("__init__",
             [](AdapterTable* self, std::int64_t lines_per_page, bool wide) {
                 new (self) AdapterTable{lines_per_page, wide, {}};
             },
             "lines_per_page"_a, "wide"_a)
        .def("set", &set_adapter, "index"_a, "pages"_a, "layers"_a,
             "Layers: for each, parts (first line, rank, inputs, first output, outputs, scale).");
    nb::class_<AdapterBatch>(m, "AdapterBatch", "Which rows of a step have which adapter.")
        .def("__init__", &make_batch, "table"_a, "rows"_a, "groups"_a, nb::keep_alive<1, 2>(),
             "Rows group by group; groups: (index of the adapter, rows). Raises ValueError where they do not fit.");
}

}  // namespace kvarn
