"""Traffic: prompts as recipes of segments, arrivals, recorded traces: what is sent, and what a simulation plays."""
