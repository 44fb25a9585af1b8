"""The command `kvarn`: one module a command."""
