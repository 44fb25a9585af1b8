"""Data of the console: one module a view."""
