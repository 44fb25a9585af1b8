"""Room: engine (see docs/architecture.md)."""
