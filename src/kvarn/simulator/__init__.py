"""Simulator: the scheduler, router, admission and autoscaler of the product on a virtual clock. Needs no torch."""
