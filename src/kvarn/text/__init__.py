"""Room: text (see docs/architecture.md)."""
