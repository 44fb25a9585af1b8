"""The device that kernels compute on: its memory, its graphs, and copies between it and the host."""
