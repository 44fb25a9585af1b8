// What Python holds: one instruction set and its scratch memory. The methods are bound topic by topic.
//
// Tensors cross the border as addresses (Python integers): what they point to, its type and its size are the caller's
// promise, kept in one place (kvarn/kernels/cpu). Every call releases the GIL.
#pragma once

#include <cstdint>
#include <mutex>

#include <nanobind/nanobind.h>

#include "core/isa.h"
#include "core/workspace.h"

namespace kvarn {

struct Backend {
    Isa isa;
    Workspace workspace;   // of one call at a time
    Workspace deltas;      // what adapters add in that call
    Workspace intermediate;    // results within a layer, see decoder/layers.h
    std::mutex in_use;
};

// One call's use of a backend: calls from other Python threads wait for its end. None waits while holding the GIL.
class Turn {
  public:
    explicit Turn(Backend& backend) : taken_(backend.in_use) {}

  private:
    nanobind::gil_scoped_release unlocked_;
    std::lock_guard<std::mutex> taken_;
};

template <class T>
T* at(std::uintptr_t address) {
    return reinterpret_cast<T*>(address);
}

using BackendClass = nanobind::class_<Backend>;

}  // namespace kvarn
