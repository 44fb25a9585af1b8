"""The compiled CPU kernels (`csrc/`) and what Python needs to call them."""
