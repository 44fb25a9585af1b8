"""What acts on deployments by itself in every simulation, in the order in which it is joined."""

from __future__ import annotations

from kvarn.simulator.simulation import Attach

ATTACHED: tuple[Attach, ...] = ()
