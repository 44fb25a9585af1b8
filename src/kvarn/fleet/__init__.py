"""Supervision of engine processes: start, watch, restart, stop; which CPUs they run on."""
