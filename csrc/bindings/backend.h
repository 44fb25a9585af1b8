// What Python holds: one instruction set and its scratch memory. The methods are bound topic by topic.
//
// Tensors cross the border as addresses (Python integers): what they point to, its type and its size are the caller's
// promise, kept in one place (kvarn/kernels/cpu). Every call releases the GIL.
#pragma once

#include <cstdint>

#include <nanobind/nanobind.h>

#include "core/isa.h"
#include "core/workspace.h"

namespace kvarn {

struct Backend {
    Isa isa;
    Workspace workspace;
};

template <class T>
T* at(std::uintptr_t address) {
    return reinterpret_cast<T*>(address);
}

using BackendClass = nanobind::class_<Backend>;

}  // namespace kvarn
