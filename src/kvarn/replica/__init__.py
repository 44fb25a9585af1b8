"""One engine process and what speaks to it: `server` is the process, `client` the view that others have of it."""
