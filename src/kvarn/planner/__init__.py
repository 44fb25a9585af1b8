"""Capacity planner: from model, device, traffic and targets to memory, replicas and cost. Needs no torch.

PlanRequest -> layouts -> size: memory, steps -> capacity -> candidates: replicas, money, reasons -> Plan
"""

from kvarn.planner.planning import plan

__all__ = ["plan"]
