// The methods of Backend, a file for each topic.
#pragma once

#include "bindings/backend.h"

namespace kvarn {

void bind_elementwise(BackendClass& backend);
void bind_roofline(BackendClass& backend);
void bind_adapters(nanobind::module_& m);
void bind_linear(nanobind::module_& m, BackendClass& backend);
void bind_attention(nanobind::module_& m, BackendClass& backend);
void bind_delta(BackendClass& backend);
void bind_sampling(BackendClass& backend);
void bind_search(nanobind::module_& m);
void bind_tile_counts(nanobind::module_& m);
void bind_decoder(nanobind::module_& m, BackendClass& backend);

}  // namespace kvarn
