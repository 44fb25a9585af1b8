"""One replica: its lifecycle, the supervisor that carries it out, and each run of its engine process."""
