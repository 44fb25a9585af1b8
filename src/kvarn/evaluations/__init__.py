"""Evaluation sets: answers of models to known questions, graded and compared."""
