"""Kernels of GPUs in main memory, by Triton's interpreter: they pack weights, and compute nothing here."""

import os

os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported
