// Scratch memory that lives as long as its backend and grows to the largest step it has seen.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvarn {

class Workspace {
  public:
    Workspace() = default;
    Workspace(const Workspace&) = delete;
    Workspace& operator=(const Workspace&) = delete;
    ~Workspace();

    // At least `bytes` bytes, aligned to 64. What an earlier call returned is invalid afterwards.
    // Throws std::bad_alloc.
    std::byte* reserve(std::size_t bytes);
    std::size_t size() const { return size_; }

  private:
    std::byte* memory_ = nullptr;
    std::size_t size_ = 0;
};

// Cuts one reserved piece of memory into aligned parts: first count the bytes, then take them in the same order.
class Carver {
  public:
    explicit Carver(std::byte* memory = nullptr) : memory_(memory) {}

    template <class T>
    T* take(std::int64_t count) {
        T* part = memory_ ? reinterpret_cast<T*>(memory_ + used_) : nullptr;
        used_ += (static_cast<std::size_t>(count) * sizeof(T) + 63) / 64 * 64;
        return part;
    }
    std::size_t used() const { return used_; }

  private:
    std::byte* memory_;
    std::size_t used_ = 0;
};

}  // namespace kvarn
