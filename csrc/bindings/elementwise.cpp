#include "bindings/backend.h"
#include "bindings/topics.h"
#include "elementwise/activation.h"
#include "elementwise/norm.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace kvarn {

#define KVARN_DECLARE(name) \
    namespace name {                          \
    void rms_norm(const RmsNormCall&);        \
    void activate_all(const ActivationCall&); \
    }
KVARN_FOR_EACH_ISA(KVARN_DECLARE)
#undef KVARN_DECLARE

void bind_elementwise(BackendClass& backend) {
    backend.def(
        "rms_norm",
        [](Backend& self, std::uintptr_t x, std::int64_t rows, std::int64_t size, std::int64_t x_stride,
           std::uintptr_t weight, float eps, std::uintptr_t out, std::int64_t out_stride, bool accumulate) {
            const RmsNormCall call{at<const float>(x), rows, size, x_stride, at<const float>(weight), eps,
                                   at<float>(out), out_stride, accumulate};
            nb::gil_scoped_release unlocked;
            KVARN_CALL(self.isa, rms_norm, call);
        },
        "x"_a, "rows"_a, "size"_a, "x_stride"_a, "weight"_a, "eps"_a, "out"_a, "out_stride"_a, "accumulate"_a);
    backend.def(
        "activate",
        [](Backend& self, std::uintptr_t x, std::int64_t count, int activation, std::uintptr_t out) {
            const ActivationCall call{at<const float>(x), count, static_cast<Activation>(activation), at<float>(out)};
            nb::gil_scoped_release unlocked;
            KVARN_CALL(self.isa, activate_all, call);
        },
        "x"_a, "count"_a, "activation"_a, "out"_a);
}

}  // namespace kvarn
