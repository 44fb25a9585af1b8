"""Machines, GPUs and cores that replicas are placed on."""
