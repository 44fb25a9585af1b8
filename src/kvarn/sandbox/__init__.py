"""Worker processes for work on what a client or a checkpoint sends: their time and memory are bounded from outside."""
