"""The whole configuration of Kvarn: one documented, strict model.

A field is documented where it is defined, and `docs/reference/configuration.md` is generated from these docstrings.
Unknown keys are errors. `load` reads the configuration; an engine process is given its part and starts without it.
"""
