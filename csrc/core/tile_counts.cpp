#include "core/tile_counts.h"

#include <stdexcept>

namespace kvarn {

TileCounter* tile_counter = nullptr;

CacheModel::CacheModel(std::size_t bytes, std::size_t ways) : ways_(ways), sets_(bytes / (ways * 64)), lines_(sets_ * ways) {}

bool CacheModel::use(std::uintptr_t line) {
    Line* const set = &lines_[line % sets_ * ways_];
    Line* oldest = set;
    ++clock_;
    for (Line* at = set; at != set + ways_; ++at) {
        if (at->used && at->line == line) {
            at->used = clock_;
            return true;
        }
        if (at->used < oldest->used) oldest = at;
    }
    *oldest = {line, clock_};
    return false;
}

void TileCounter::start() {
    if (tile_counter) throw std::logic_error("tiles are counted already");
    tile_counter = this;
}

void TileCounter::stop() {
    if (tile_counter == this) tile_counter = nullptr;
}

void TileCounter::touch(const void* rows, std::size_t stride, int count, LinesByPlace& places) {
    for (int r = 0; r < count; ++r) {
        const std::uintptr_t line = (reinterpret_cast<std::uintptr_t>(rows) + r * stride) / 64;
        const bool in_first = first_.use(line), in_second = second_.use(line), in_third = third_.use(line);
        ++places[in_first ? 0 : in_second ? 1 : in_third ? 2 : 3];
    }
}

}  // namespace kvarn
