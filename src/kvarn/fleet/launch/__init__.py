"""Launchers of engine processes: on this machine, or elsewhere."""
