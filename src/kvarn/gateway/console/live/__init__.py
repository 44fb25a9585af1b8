"""Present work of engines, for those who watch: one question to an engine for all of its viewers."""
