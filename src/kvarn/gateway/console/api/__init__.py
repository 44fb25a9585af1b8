"""Routes of the console's data: a module a view."""
