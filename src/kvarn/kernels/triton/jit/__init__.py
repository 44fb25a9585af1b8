"""The code that runs on the device. Strides, sizes and flags are constants of a compiled kernel."""
