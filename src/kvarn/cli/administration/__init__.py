"""Commands that work on the database as the administrator of this machine."""
