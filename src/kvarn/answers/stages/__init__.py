"""The stages that take work in: each has a say in whether it is taken, or wants to know what came of it."""
