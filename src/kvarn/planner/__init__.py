"""What serving costs, from first principles: bytes, operations, and the machine's ceilings over both."""

from kvarn.planner.costs import DecoderCosts, StepWork, loaded_costs, planned_costs
from kvarn.planner.roofline import Ceilings, floor_s

__all__ = ["Ceilings", "DecoderCosts", "StepWork", "floor_s", "loaded_costs", "planned_costs"]
