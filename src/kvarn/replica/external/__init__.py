"""Replicas that another server runs: their answers, their errors, their health."""
