#include "search/longest_match.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>

#include "bindings/topics.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace kvarn {

using Tokens = nb::ndarray<const std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// A microsecond for texts of usual length: the GIL is kept.
void bind_search(nb::module_& m) {
    m.def(
        "longest_match",
        [](const Tokens& text, const Tokens& tail) {
            if (tail.size() == 0) return std::pair<std::int64_t, std::int64_t>{0, 0};
            const auto length = static_cast<std::int64_t>(text.size());
            const auto tail_length = static_cast<std::int64_t>(tail.size());
            const Match match = longest_match(text.data(), length, tail.data(), tail_length);
            return std::pair{match.place, match.length};
        },
        "text"_a, "tail"_a);
}

}  // namespace kvarn
