// Which replicas hold which KV blocks: a hash table from block names to masks of replicas.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace kvarn::routing {

// A block's name (the first 8 bytes of its hash, so it needs no further hashing) and the replicas that hold it, a bit
// for each. An entry without replicas is free.
struct BlockEntry {
    std::uint64_t name;
    std::uint64_t replicas;
};

// Open addressing with linear probing. An entry's home grows with its name, so entries stand nearly in the order of
// their names, and a table is moved into a larger one in one pass.
class BlockTable {
public:
    explicit BlockTable(std::size_t smallest) : smallest_(smallest) {}
    // Replicas that hold a block.
    std::uint64_t find(std::uint64_t name) const;
    void prefetch(std::uint64_t name) const;
    void insert(std::uint64_t name, std::uint64_t replica);
    void remove(std::uint64_t name, std::uint64_t replica);
    // Forget what these replicas hold: at once for `find`; in memory once the table is rebuilt.
    void forget(std::uint64_t replicas) { forgotten_ |= replicas; }
    bool has_forgotten() const { return forgotten_ != 0; }
    // Drop what was forgotten, and take or give back memory as the rest needs it.
    void rebuild();
    std::size_t count() const { return count_; }
    std::size_t capacity() const { return entries_.size(); }

private:
    std::size_t home(std::uint64_t name) const;
    // Where the block is, or where it would stand.
    std::size_t place(std::uint64_t name) const;

    std::vector<BlockEntry> entries_;
    std::size_t smallest_;
    std::size_t count_ = 0;
    std::uint64_t forgotten_ = 0;
};

// The index of one model. Blocks are spread over many small tables, so that none takes long when it grows.
class BlockIndex {
public:
    static constexpr int kReplicas = 64;

    BlockIndex();
    void insert(int replica, std::span<const std::uint64_t> names);
    void remove(int replica, std::span<const std::uint64_t> names);
    void clear(int replica);
    // For each replica, how many of these blocks it holds before the first that it does not; `names` are a prompt's.
    std::vector<int> match(std::span<const std::uint64_t> names) const;
    std::size_t count() const;
    std::size_t memory_bytes() const;

private:
    static constexpr int kTableBits = 8;
    BlockTable& table(std::uint64_t name) { return tables_[name >> (64 - kTableBits)]; }
    const BlockTable& table(std::uint64_t name) const { return tables_[name >> (64 - kTableBits)]; }
    // Rebuild one table of which something was forgotten, if there is any.
    void rebuild_next();

    std::vector<BlockTable> tables_;
    std::size_t next_ = 0;
    std::size_t unclean_ = 0;
};

}  // namespace kvarn::routing
