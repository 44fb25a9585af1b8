// Where the lines of adapters are.
#include <algorithm>

#include "linear/adapters.h"

namespace kvarn {

namespace {

std::int64_t lines_of(const AdapterPart& part, bool wide) {
    const std::int64_t inputs = wide ? 1 : 2;   // of a line
    const auto ceil_div = [](std::int64_t a, std::int64_t b) { return (a + b - 1) / b; };
    const std::int64_t a = ceil_div(part.rank, kPanel) * ceil_div(part.in, inputs);
    return a + ceil_div(part.outs, kPanel) * ceil_div(part.rank, inputs);
}

}  // namespace

PrefetchList lines_of_layer(const AdapterBatch& batch, std::int64_t layer) {
    PrefetchList list;
    for (const AdapterGroup& group : batch.groups) {
        const Adapter& adapter = batch.table->adapters[static_cast<std::size_t>(group.adapter)];
        if (static_cast<std::size_t>(layer) >= adapter.layers.size()) continue;
        const AdapterLines lines(adapter, batch.table->lines_per_page);
        for (const AdapterPart& part : adapter.layers[static_cast<std::size_t>(layer)]) {
            const std::int64_t end = part.first_line + lines_of(part, batch.table->wide);
            for (std::int64_t line = part.first_line, run; line < end; line += run) {
                run = std::min(end - line, lines.together(line));
                list.add(lines.at(line), run);
            }
        }
    }
    return list;
}

}  // namespace kvarn
