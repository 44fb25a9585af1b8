"""Which requests an engine can serve in time: pure policy, told the time, without I/O.

`predictor` knows what steps take, `engine_view` what the engine is doing now, `traffic` what requests turn out to ask
for, `fair_queue` who waits in what order, and `controller` decides. `serving/stages/admission.py` joins it to requests.
"""
