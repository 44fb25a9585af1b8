"""Engine processes as Ray actors."""
