"""Guessed tokens that the model verifies: who guesses, and how many are worth a step's time."""
