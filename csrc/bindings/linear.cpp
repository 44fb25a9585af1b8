#include "bindings/backend.h"
#include "bindings/topics.h"
#include "linear/adapters.h"
#include "linear/linear.h"
#include "linear/multiply.h"
#include "linear/pack.h"
#include "linear/quantise_weights.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace kvarn {

#define KVARN_DECLARE(name) \
    namespace name { \
        void quantise_int8_weight(const PlainWeight&, const Int8Weight&); \
        void quantise_int4_weight(const PlainWeight&, const Int4Weight&); \
    }
KVARN_FOR_EACH_ISA(KVARN_DECLARE)
#undef KVARN_DECLARE

namespace {

void bind_packing(nb::module_& m) {
    nb::class_<PackedWeight>(m, "PackedWeight")
        .def("__init__",
             [](PackedWeight* self, int layout, std::int64_t out, std::int64_t in, std::int64_t group, bool has_zeros,
                bool gated, bool has_multipliers) {
                 new (self) PackedWeight{static_cast<Format>(layout), out,   in,     group, has_zeros,
                                         has_multipliers,             gated, nullptr};
             },
             "layout"_a, "out"_a, "in_"_a, "group"_a, "has_zeros"_a, "gated"_a,
             "has_multipliers"_a = false)
        .def_prop_ro("size", [](const PackedWeight& self) { return sections(self).size; }, "Bytes of its blob.")
        .def_prop_rw(
            "blob", [](const PackedWeight& self) { return reinterpret_cast<std::uintptr_t>(self.blob); },
            [](PackedWeight& self, std::uintptr_t blob) { self.blob = at<const std::byte>(blob); });
    m.def(
        "pack_float",
        [](const PackedWeight& weight, std::uintptr_t rows, std::uintptr_t blob) {
            nb::gil_scoped_release unlocked;
            pack_float(weight, at<const void>(rows), at<std::byte>(blob));
        },
        "weight"_a, "rows"_a, "blob"_a);
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
           std::uintptr_t blob, std::uintptr_t multipliers) {
            nb::gil_scoped_release unlocked;
            pack_int4(weight, at<const std::uint8_t>(values), at<const std::uint16_t>(scales),
                      at<const std::uint8_t>(zeros), at<const std::int8_t>(multipliers), at<std::byte>(blob));
        },
        "weight"_a, "values"_a, "scales"_a, "zeros"_a, "blob"_a, "multipliers"_a = 0);
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
        "quantize_int8",
        [](Backend& self, std::uintptr_t plain, bool is_bf16, std::int64_t out, std::int64_t in, std::uintptr_t values,
           std::uintptr_t scales) {
            const PlainWeight weight{at<const void>(plain), is_bf16, out, in};
            const Int8Weight result{at<std::int8_t>(values), at<float>(scales)};
            const Turn turn(self);
            KVARN_CALL(self.isa, quantise_int8_weight, weight, result);
        },
        "plain"_a, "is_bf16"_a, "out"_a, "in_"_a, "values"_a, "scales"_a);
    backend.def(
        "quantize_int4",
        [](Backend& self, std::uintptr_t plain, bool is_bf16, std::int64_t out, std::int64_t in, std::uintptr_t values,
           std::uintptr_t scales, std::uintptr_t multipliers) {
            const PlainWeight weight{at<const void>(plain), is_bf16, out, in};
            const Int4Weight result{at<std::uint8_t>(values), at<std::uint16_t>(scales), at<std::int8_t>(multipliers)};
            const Turn turn(self);
            KVARN_CALL(self.isa, quantise_int4_weight, weight, result);
        },
        "plain"_a, "is_bf16"_a, "out"_a, "in_"_a, "values"_a, "scales"_a, "multipliers"_a);
}

}  // namespace kvarn
