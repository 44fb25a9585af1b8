"""Start of an engine process: parts of the engine, memory plan, proposer, warm-up."""
