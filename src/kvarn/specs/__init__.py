"""Models as data: from config.json to what they are made of, and what a rank holds of it. Needs no torch."""
