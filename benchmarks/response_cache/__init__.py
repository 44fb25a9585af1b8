"""The response cache measured."""
