"""What serving costs, from first principles: bytes, operations, and the machine's ceilings over both."""

from kvarn.planner.costs import DecoderCosts, StepWork, decoder_costs
from kvarn.planner.roofline import Ceilings, floor_s

__all__ = ["Ceilings", "DecoderCosts", "StepWork", "decoder_costs", "floor_s"]
