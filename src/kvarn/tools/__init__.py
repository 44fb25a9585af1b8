"""Tools that the platform runs for a model: which there are, how a call is run, and the loop of turns around them."""
