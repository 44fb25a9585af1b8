"""The console: its built files, who is signed in, and one route of data for each of its views."""
