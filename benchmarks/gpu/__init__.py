"""One command for a machine with a GPU: what the kernels and the engine do there. See docs/internals/gpu.md."""
