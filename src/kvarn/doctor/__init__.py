"""Examination of a machine and of a configuration: what is there, what is wrong, and what to do about it.

Checks are pure functions of what was read; `examination.py` reads and calls them in order.
"""
