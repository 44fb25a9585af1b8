"""One replica as others see it."""
