#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include "bindings/backend.h"
#include "bindings/topics.h"
#include "linear/adapters.h"
#include "linear/linear.h"
#include "linear/multiply.h"
#include "linear/pack.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace kvarn {

#define KVARN_DECLARE(name) \
    namespace name { \
        void pack_quantised(const PackedWeight&, const StackedRows&, bool, std::byte*); \
    }
KVARN_FOR_EACH_ISA(KVARN_DECLARE)
#undef KVARN_DECLARE

namespace {

// Where it begins, and its rows.
using Part = std::pair<std::uintptr_t, std::int64_t>;

StackedRows stacked(const std::vector<Part>& parts, std::int64_t row_bytes) {
    std::vector<StackedRows::Part> own;
    for (const auto& [first, rows] : parts) own.push_back({at<const std::byte>(first), rows});
    return {std::move(own), static_cast<std::size_t>(row_bytes)};
}

void bind_packing(nb::module_& m) {
    nb::class_<PackedWeight>(m, "PackedWeight")
        .def("__init__",
             [](PackedWeight* self, int layout, std::int64_t out, std::int64_t in, std::int64_t group, bool has_zeros,
                bool gated, bool has_sub_scales) {
                 new (self) PackedWeight{static_cast<Format>(layout), out,   in,     group, has_zeros,
                                         has_sub_scales,             gated, nullptr};
             },
             "layout"_a, "out"_a, "in_"_a, "group"_a, "has_zeros"_a, "gated"_a,
             "has_sub_scales"_a = false)
        .def_prop_ro("size", [](const PackedWeight& self) { return sections(self).size; }, "Bytes of its blob.")
        .def_prop_rw(
            "blob", [](const PackedWeight& self) { return reinterpret_cast<std::uintptr_t>(self.blob); },
            [](PackedWeight& self, std::uintptr_t blob) { self.blob = at<const std::byte>(blob); });
    m.def(
        "pack_float",
        [](const PackedWeight& weight, const std::vector<Part>& parts, std::uintptr_t blob) {
            nb::gil_scoped_release unlocked;
            pack_float(weight, stacked(parts, weight.in * (weight.format == Format::f32 ? 4 : 2)), at<std::byte>(blob));
        },
        "weight"_a, "parts"_a, "blob"_a);
    m.def(
        "pack_int8",
        [](const PackedWeight& weight, std::uintptr_t values, std::uintptr_t scales, std::uintptr_t blob) {
            nb::gil_scoped_release unlocked;
            pack_int8(weight, at<const std::int8_t>(values), at<const float>(scales), at<std::byte>(blob));
        },
        "weight"_a, "values"_a, "scales"_a, "blob"_a);
    m.def(
        "pack_int4",
        [](const PackedWeight& weight, std::uintptr_t values, std::uintptr_t scales, std::uintptr_t zeros,
           std::uintptr_t blob, std::uintptr_t sub_scales) {
            nb::gil_scoped_release unlocked;
            pack_int4(weight, at<const std::uint8_t>(values), at<const std::uint16_t>(scales),
                      at<const std::uint8_t>(zeros), at<const std::int8_t>(sub_scales), at<std::byte>(blob));
        },
        "weight"_a, "values"_a, "scales"_a, "zeros"_a, "blob"_a, "sub_scales"_a = 0);
    m.def(
        "unpack_rows",
        [](const PackedWeight& weight, std::uintptr_t ids, std::int64_t count, std::uintptr_t out) {
            nb::gil_scoped_release unlocked;
            const auto unpack = is_integer(weight) ? &unpack_integer : &unpack_float;
            unpack(weight, at<const std::int64_t>(ids), count, at<float>(out));
        },
        "weight"_a, "ids"_a, "count"_a, "out"_a);
}

}  // namespace

void bind_linear(nb::module_& m, BackendClass& backend) {
    bind_packing(m);
    backend.def(
        "linear",
        [](Backend& self, const PackedWeight& weight, std::uintptr_t x, std::int64_t rows, std::int64_t x_stride,
           std::uintptr_t norm, float eps, int activation, std::uintptr_t bias, std::uintptr_t out,
           std::int64_t out_stride, bool accumulate, const AdapterBatch* adapters, std::int64_t layer) {
            const LinearCall call{weight, at<const float>(x), rows, x_stride, at<const float>(norm), eps,
                            static_cast<Activation>(activation), at<const float>(bias), at<float>(out),
                            out_stride, accumulate, nullptr, nullptr, &self.workspace};
            const Turn turn(self);
            multiply(self.isa, call, adapters, layer, self.deltas);
        },
        "weight"_a, "x"_a, "rows"_a, "x_stride"_a, "norm"_a, "eps"_a, "activation"_a, "bias"_a, "out"_a,
        "out_stride"_a, "accumulate"_a, "adapters"_a.none() = nb::none(), "layer"_a = -1);
    backend.def(
        "pack_quantized",
        [](Backend& self, const PackedWeight& weight, const std::vector<Part>& parts, bool is_bf16,
           std::uintptr_t blob) {
            const bool is_int4 = weight.format == Format::int4 && weight.has_sub_scales && weight.group == kScaleInputs;
            if (!is_int4 && weight.format != Format::int8) throw nb::value_error("neither int8 nor int4 as quantised here");
            const StackedRows rows = stacked(parts, weight.in * (is_bf16 ? 2 : 4));
            const Turn turn(self);
            KVARN_CALL(self.isa, pack_quantised, weight, rows, is_bf16, at<std::byte>(blob));
        },
        "weight"_a, "parts"_a, "is_bf16"_a, "blob"_a);
}

}  // namespace kvarn
