"""One replica's scheduling, in pure Python: `core.EngineCore` takes requests and makes plans for an `Executor`, deltas
for gateways. Nothing is imported here: who needs one module (the planner takes `step_time`) does not load the engine.
"""
