"""Past an engine's capacity, with admission and without: see `__main__`."""
