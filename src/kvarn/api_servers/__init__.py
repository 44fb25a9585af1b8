"""Several gateway processes behind one port (`gateway.api_server_count`).

The main process supervises the engines and starts the others; all of them serve HTTP. Each other process is joined to
the main one by a pair of sockets: over it go what all have to count together (limits, reservations of budgets), what
the main process knows of the engines, and metrics.
"""
