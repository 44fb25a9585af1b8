"""Room: observe (see docs/architecture.md)."""
