"""Proposers of tokens: from text seen before, from a draft model, from an EAGLE head."""
