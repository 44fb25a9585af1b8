"""Capacity planner: from model, device, traffic and targets to memory, replicas and cost. Needs no torch."""
