"""Room: replica (see docs/architecture.md)."""
