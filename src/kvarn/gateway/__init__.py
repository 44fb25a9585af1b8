"""Room: gateway (see docs/architecture.md)."""
