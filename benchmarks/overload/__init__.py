"""Past an engine's capacity, with load shedding and without: see `__main__`."""
