"""The HTTP server: routes, authentication, request bodies, answers as JSON and server-sent events."""
