"""Files and their content."""
