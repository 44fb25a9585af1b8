#include "routing/block_index.h"

#include <algorithm>
#include <cmath>

namespace kvarn::routing {
namespace {

constexpr double kSmallest = 256;
constexpr double kGrowth = 1.5;
constexpr std::size_t kTableBits = 8;
// Lookups this far ahead are on their way from memory.
constexpr std::size_t kAhead = 16;

// A full table has three quarters of its entries in use, a new one half of them: it has grown by kGrowth.
std::size_t capacity_for(std::size_t count) { return count * 2; }
bool is_full(std::size_t count, std::size_t capacity) { return (count + 1) * 4 > capacity * 3; }
std::uint64_t bit(int replica) { return std::uint64_t{1} << replica; }

}  // namespace

std::size_t BlockTable::home(std::uint64_t name) const {
    // The table is chosen by the first bits; the rest, as a fraction of 2^64, scales to the capacity.
    return static_cast<std::size_t>((static_cast<unsigned __int128>(name << kTableBits) * entries_.size()) >> 64);
}

std::size_t BlockTable::place(std::uint64_t name) const {
    std::size_t at = home(name);
    while (entries_[at].replicas != 0 && entries_[at].name != name) at = at + 1 == entries_.size() ? 0 : at + 1;
    return at;
}

std::uint64_t BlockTable::find(std::uint64_t name) const {
    return entries_.empty() ? 0 : entries_[place(name)].replicas & ~forgotten_;
}

void BlockTable::prefetch(std::uint64_t name) const {
    if (!entries_.empty()) __builtin_prefetch(&entries_[home(name)]);
}

void BlockTable::insert(std::uint64_t name, std::uint64_t replica) {
    if ((forgotten_ & replica) || is_full(count_, entries_.size())) rebuild();
    BlockEntry& entry = entries_[place(name)];
    count_ += entry.replicas == 0;
    entry.name = name;
    entry.replicas |= replica;
}

void BlockTable::remove(std::uint64_t name, std::uint64_t replica) {
    if (entries_.empty()) return;
    std::size_t hole = place(name);
    if (!(entries_[hole].replicas & replica)) return;
    if ((entries_[hole].replicas &= ~replica) != 0) return;
    --count_;
    // Entries behind the hole move into it where their home is not between the two.
    const std::size_t size = entries_.size();
    for (std::size_t at = hole;;) {
        at = at + 1 == size ? 0 : at + 1;
        if (entries_[at].replicas == 0) break;
        const std::size_t from_home = (at + size - home(entries_[at].name)) % size;
        const std::size_t from_hole = (at + size - hole) % size;
        if (from_home >= from_hole) {
            entries_[hole] = entries_[at];
            hole = at;
        }
    }
    entries_[hole].replicas = 0;
}

void BlockTable::rebuild() {
    std::vector<BlockEntry> old;
    old.swap(entries_);
    std::size_t left = 0;
    for (BlockEntry& entry : old) left += (entry.replicas &= ~forgotten_) != 0;
    forgotten_ = 0;
    entries_.resize(std::max(smallest_, capacity_for(left + 1)));
    count_ = left;
    for (const BlockEntry& entry : old) {
        if (entry.replicas != 0) entries_[place(entry.name)] = entry;
    }
}

BlockIndex::BlockIndex() {
    static_assert(kTableBits == routing::kTableBits);
    // All tables fill alike. Their sizes are spread over one step of growth, so that they do not grow all at once.
    const int tables = 1 << kTableBits;
    for (int i = 0; i < tables; ++i) {
        tables_.emplace_back(static_cast<std::size_t>(kSmallest * std::pow(kGrowth, double(i) / tables)));
    }
}

void BlockIndex::insert(int replica, std::span<const std::uint64_t> names) {
    rebuild_next();
    for (std::size_t i = 0; i < names.size(); ++i) {
        if (i + kAhead < names.size()) table(names[i + kAhead]).prefetch(names[i + kAhead]);
        table(names[i]).insert(names[i], bit(replica));
    }
}

void BlockIndex::remove(int replica, std::span<const std::uint64_t> names) {
    rebuild_next();
    for (const std::uint64_t name : names) table(name).remove(name, bit(replica));
}

void BlockIndex::clear(int replica) {
    for (BlockTable& each : tables_) each.forget(bit(replica));
    unclean_ = tables_.size();
}

void BlockIndex::rebuild_next() {
    if (unclean_ == 0) return;
    BlockTable& each = tables_[next_++ % tables_.size()];
    if (each.has_forgotten()) each.rebuild();
    --unclean_;
}

std::vector<int> BlockIndex::match(std::span<const std::uint64_t> names) const {
    std::vector<int> held(kReplicas, 0);
    const auto count = [&](std::uint64_t replicas, int blocks) {
        for (; replicas != 0; replicas &= replicas - 1) held[__builtin_ctzll(replicas)] = blocks;
    };
    for (std::size_t i = 0; i < std::min(kAhead, names.size()); ++i) table(names[i]).prefetch(names[i]);
    std::uint64_t holders = ~std::uint64_t{0};
    std::size_t i = 0;
    for (; i < names.size() && holders != 0; ++i) {
        if (i + kAhead < names.size()) table(names[i + kAhead]).prefetch(names[i + kAhead]);
        const std::uint64_t still = holders & table(names[i]).find(names[i]);
        if (still != holders) count(holders & ~still, static_cast<int>(i));
        holders = still;
    }
    count(holders, static_cast<int>(i));
    return held;
}

std::size_t BlockIndex::count() const {
    std::size_t sum = 0;
    for (const BlockTable& each : tables_) sum += each.count();
    return sum;
}

std::size_t BlockIndex::memory_bytes() const {
    std::size_t sum = 0;
    for (const BlockTable& each : tables_) sum += each.capacity() * sizeof(BlockEntry);
    return sum;
}

}  // namespace kvarn::routing
