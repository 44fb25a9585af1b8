"""Room: worker (see docs/architecture.md)."""
