"""Simulator: the engine, router, admission and autoscaler on a virtual clock, with modelled devices.

`simulate` plays a `Scenario` and gives its `Outcome`; nothing of policy is written here.
"""

from kvarn.simulator.outcome import Outcome, report
from kvarn.simulator.run import simulate
from kvarn.simulator.scenario import Scenario, ScenarioError, load_scenario

__all__ = ["Outcome", "Scenario", "ScenarioError", "load_scenario", "report", "simulate"]
