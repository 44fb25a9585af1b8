"""Kernels in Triton, for GPUs. Imported only where a GPU is used, or Triton's interpreter is on."""
