#include "core/workspace.h"

#include <new>

namespace kvarn {

namespace {
constexpr std::align_val_t kAlignment{64};
}

Workspace::~Workspace() { ::operator delete(memory_, kAlignment); }

std::byte* Workspace::reserve(std::size_t bytes) {
    if (bytes > size_) {
        ::operator delete(memory_, kAlignment);
        memory_ = nullptr;
        size_ = 0;
        memory_ = static_cast<std::byte*>(::operator new(bytes, kAlignment));
        size_ = bytes;
    }
    return memory_;
}

}  // namespace kvarn
