"""Matters that act on deployments by themselves in every simulation, in the order in which they are joined."""

from __future__ import annotations

from kvarn.simulator.model_choice import attach_model_choice
from kvarn.simulator.rollouts import attach_rollouts
from kvarn.simulator.simulation import Attach

ATTACHED: tuple[Attach, ...] = (attach_model_choice, attach_rollouts)
