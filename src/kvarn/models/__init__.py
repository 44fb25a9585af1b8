"""Room: models (see docs/architecture.md)."""
