"""Room: kernels (see docs/architecture.md)."""
