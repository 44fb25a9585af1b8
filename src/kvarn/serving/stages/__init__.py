"""The stages of the pipeline: each has a say in whether work is taken, or wants to know what came of it."""
