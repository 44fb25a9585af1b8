"""A model that several processes hold together: its executor, what the other ranks run, and how they talk."""
