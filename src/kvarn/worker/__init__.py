"""Turns plans into tokens: the executors, the sampler, KV-cache sizing."""
