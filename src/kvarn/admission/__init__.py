"""Which requests an engine can serve in time: pure policy, the clock passed in, without I/O.

`predictor` knows what steps take, `engine_load` what the engine is doing now, `traffic` what requests turn out to need,
`queue` who waits in what order, and `controller` decides. `answers/stages/admission.py` joins it to requests.
"""
