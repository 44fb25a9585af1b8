"""Sessions: which turns belong together, when the next one is likely, and what it is worth to keep its KV."""
