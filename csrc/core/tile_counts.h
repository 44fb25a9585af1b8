// What emulated tiles do, counted: products, and how near the lines lie that they load and store. With the cycles that
// each takes on a processor (benchmarks/kernels/tiles.py) this says, on any machine, how near a kernel comes to the peak.
//
// One thread's tiles are counted at a time. What only vector instructions touch is not seen.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvarn {

// A cache whose sets forget the line that was used longest ago.
class CacheModel {
  public:
    CacheModel(std::size_t bytes, std::size_t ways);
    // Whether it held the line; from now on it does.
    bool use(std::uintptr_t line);

  private:
    struct Line {
        std::uintptr_t line = 0;
        std::uint64_t used = 0;    // 0: empty
    };
    std::size_t ways_, sets_;
    std::vector<Line> lines_;      // [sets][ways]
    std::uint64_t clock_ = 0;
};

// Lines found in the first cache, the second, the third, and in none.
using LinesByPlace = std::array<std::int64_t, 4>;

extern class TileCounter* tile_counter;    // while tiles are counted, else null

class TileCounter {
  public:
    TileCounter() = default;
    TileCounter(const TileCounter&) = delete;
    TileCounter& operator=(const TileCounter&) = delete;
    ~TileCounter() { stop(); }
    // Throws std::logic_error where another one counts.
    void start();
    void stop();

    void load(const void* rows, std::size_t stride, int count) { touch(rows, stride, count, loaded); }
    void store(const void* rows, std::size_t stride, int count) { touch(rows, stride, count, stored); }

    std::array<std::int64_t, 17> products{};    // by the number of rows of their sums
    LinesByPlace loaded{}, stored{};
    std::int64_t configurations = 0;

  private:
    void touch(const void* rows, std::size_t stride, int count, LinesByPlace& places);

    CacheModel first_{48 << 10, 12}, second_{2 << 20, 16}, third_{64 << 20, 16};    // as servers with AMX have them
};

}  // namespace kvarn
